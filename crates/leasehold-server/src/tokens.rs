//! The file of access tokens: names, digests, scopes, prefixes. The tokens themselves are in no file.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Error, ErrorKind, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::access::{Caller, Scope};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The access tokens of a file, which is read again when it changes.
///
/// ```toml
/// [[token]]
/// name = "deploy-bot"
/// sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
/// scopes = ["read", "hold"]
/// prefixes = ["deploy/"]              # all names if it is missing
/// expires = "2027-01-01T00:00:00Z"    # never if it is missing
/// ```
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    tokens: Arc<[Token]>,
    looked: Instant,
    seen: Option<Seen>,
}

type Seen = (SystemTime, u64);

#[derive(Debug, Clone)]
struct Token {
    name: Arc<str>,
    digest: [u8; 32],
    scopes: Arc<[Scope]>,
    prefixes: Arc<[String]>,
    expires: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    #[serde(default)]
    token: Vec<TokenForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenForm {
    name: String,
    sha256: String,
    scopes: Vec<Scope>,
    prefixes: Option<Vec<String>>,
    expires: Option<String>,
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if it cannot be read, is not as it should be, or can be written by others.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let (tokens, seen) = read(&path)?;
        let known = Known {
            tokens,
            looked: Instant::now(),
            seen: Some(seen),
        };
        Ok(Self {
            path,
            known: Mutex::new(known),
        })
    }

    /// Whose token it is.
    pub(crate) fn find(&self, token: &str, read_only: bool) -> Option<Caller> {
        self.find_digest(digest(token), read_only)
    }

    /// Whose token has this digest. All are compared, and each to its end, so that the time tells nothing.
    pub(crate) fn find_digest(&self, digest: [u8; 32], read_only: bool) -> Option<Caller> {
        let tokens = self.current();
        let mut found = None;
        for known in tokens.iter() {
            let differences = known.digest.iter().zip(&digest);
            let differ = differences.fold(0, |differ, (a, b)| differ | (a ^ b));
            if std::hint::black_box(differ) == 0 {
                found = Some(known);
            }
        }
        let found = found.filter(|it| it.expires.is_none_or(|end| SystemTime::now() < end))?;
        Some(Caller {
            name: Some(Arc::clone(&found.name)),
            digest: Some(digest),
            scopes: Arc::clone(&found.scopes),
            prefixes: Arc::clone(&found.prefixes),
            read_only,
        })
    }

    fn current(&self) -> Arc<[Token]> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.elapsed() >= LOOK {
            known.looked = Instant::now();
            let seen = fs::metadata(&self.path).ok().as_ref().and_then(seen);
            if seen != known.seen {
                match read(&self.path) {
                    Ok((tokens, seen)) => {
                        known.tokens = tokens;
                        known.seen = Some(seen);
                    }
                    // Half written, perhaps: the old ones stay, and it is looked at again.
                    Err(error) => eprintln!("leasehold: warning: {error}; the old tokens stay"),
                }
            }
        }
        Arc::clone(&known.tokens)
    }
}

fn seen(file: &Metadata) -> Option<Seen> {
    Some((file.modified().ok()?, file.len()))
}

fn read(path: &Path) -> Result<(Arc<[Token]>, Seen)> {
    let wrong = |what: String| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the tokens file {path:?} {what}"),
        )
        .advise("write it with `leasehold token new`")
    };
    let file = fs::metadata(path).map_err(|cause| wrong(format!("cannot be read: {cause}")))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if file.permissions().mode() & 0o022 != 0 {
            return Err(
                wrong("can be written by others".to_owned()).advise("take that away: chmod go-w")
            );
        }
    }
    let text =
        fs::read_to_string(path).map_err(|cause| wrong(format!("cannot be read: {cause}")))?;
    let form: FileForm = toml::from_str(&text).map_err(|cause| {
        let what = cause.message().lines().next().unwrap_or_default();
        wrong(format!("cannot be used: {what}"))
    })?;
    let tokens = form.token.into_iter().map(|form| {
        let name = form.name.clone();
        Token::try_from(form).map_err(|what| wrong(format!("has a token {name:?} {what}")))
    });
    let tokens = tokens.collect::<Result<Vec<_>>>()?;
    let seen = seen(&file).unwrap_or((SystemTime::UNIX_EPOCH, 0));
    Ok((tokens.into(), seen))
}

impl TryFrom<TokenForm> for Token {
    type Error = &'static str;

    fn try_from(form: TokenForm) -> std::result::Result<Self, &'static str> {
        if form.scopes.is_empty() {
            return Err("without scopes");
        }
        if form.prefixes.as_ref().is_some_and(Vec::is_empty) {
            return Err("with an empty list of prefixes, which is for no name at all");
        }
        let expires = form.expires.map(|at| humantime::parse_rfc3339_weak(&at));
        Ok(Self {
            name: form.name.into(),
            digest: parse_digest(&form.sha256)
                .ok_or("whose sha256 is not 64 hexadecimal digits")?,
            scopes: form.scopes.into(),
            prefixes: form.prefixes.unwrap_or_else(|| vec![String::new()]).into(),
            expires: expires
                .transpose()
                .map_err(|_| "whose expires is not like 2027-01-01T00:00:00Z")?,
        })
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

/// A new access token: what its user is given once, and what the tokens file says of it.
#[derive(Debug)]
pub struct NewToken {
    /// The token.
    pub token: String,
    /// Its entry in the tokens file.
    pub entry: String,
}

impl NewToken {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if it has no scopes, or a name that does not fit on a line; [`ErrorKind::Unexpected`] if the system gives no random bits.
    pub fn new(
        name: &str,
        scopes: &[Scope],
        prefixes: &[String],
        expires: Option<SystemTime>,
    ) -> Result<Self> {
        let invalid = |what: &str| Error::new(ErrorKind::InvalidConfig, what.to_owned());
        if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
            return Err(invalid("the name of the token cannot be used")
                .advise("use 1 to 255 bytes of text without control characters"));
        }
        if scopes.is_empty() {
            return Err(invalid("a token without scopes allows nothing")
                .advise("give it some: --scope read --scope hold"));
        }
        let mut bits = [0; 32];
        getrandom::fill(&mut bits).map_err(|cause| {
            Error::new(ErrorKind::Unexpected, "the system gave no random bits").caused_by(cause)
        })?;
        let token = format!("lh_{}", hex(&bits));
        let list = |texts: &mut dyn Iterator<Item = &str>| {
            let texts: Vec<_> = texts.map(quoted).collect();
            format!("[{}]", texts.join(", "))
        };
        let mut entry = format!(
            "[[token]]\nname = {}\nsha256 = \"{}\"\nscopes = {}\n",
            quoted(name),
            hex(&digest(&token)),
            list(&mut scopes.iter().map(|scope| scope.name())),
        );
        if !prefixes.is_empty() {
            let prefixes = list(&mut prefixes.iter().map(String::as_str));
            entry.push_str(&format!("prefixes = {prefixes}\n"));
        }
        if let Some(expires) = expires {
            let expires = humantime::format_rfc3339_seconds(expires);
            entry.push_str(&format!("expires = \"{expires}\"\n"));
        }
        Ok(Self { token, entry })
    }
}

/// A text in quotes: what JSON escapes, TOML reads.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn hex(bits: &[u8]) -> String {
    bits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_new_token_is_found_again() {
        let scopes = [Scope::Read, Scope::Hold];
        let prefixes = ["a \"b\"/".to_owned()];
        let new = NewToken::new("bot \"1\"", &scopes, &prefixes, None).unwrap();
        let (_folder, path) = file(&new.entry);
        let tokens = Tokens::open(path).unwrap();
        let caller = tokens.find(&new.token, false).unwrap();
        assert_eq!(caller.name.as_deref(), Some("bot \"1\""));
        assert!(caller.reaches("a \"b\"/1") && !caller.reaches("a"));
        assert!(tokens.find("", false).is_none());
        assert!(tokens.find(&new.token[1..], false).is_none());
        assert!(!new.entry.contains(&new.token));
    }

    #[test]
    fn an_expired_token_is_unknown() {
        let past = SystemTime::now() - Duration::from_secs(5);
        let new = NewToken::new("old", &[Scope::Read], &[], Some(past)).unwrap();
        let (_folder, path) = file(&new.entry);
        assert!(
            Tokens::open(path)
                .unwrap()
                .find(&new.token, false)
                .is_none()
        );
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let one = NewToken::new("one", &[Scope::Read], &[], None).unwrap();
        let two = NewToken::new("two", &[Scope::Read, Scope::Break], &[], None).unwrap();
        let (_folder, path) = file(&one.entry);
        let tokens = Tokens::open(&path).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        fs::write(&path, "[[token").unwrap();
        std::thread::sleep(LOOK);
        assert!(tokens.find(&one.token, false).is_some(), "half written");
        fs::write(&path, &two.entry).unwrap();
        while tokens.find(&two.token, false).is_none() {
            assert!(Instant::now() < until);
            std::thread::sleep(LOOK / 10);
        }
        assert!(tokens.find(&one.token, false).is_none());
    }

    #[test]
    fn bad_files_are_refused_with_advice() {
        let digest = "0".repeat(64);
        let entry = |more: &str| format!("[[token]]\nname = \"a\"\n{more}");
        let table = [
            "[[token".to_owned(),
            entry(""),
            entry(&format!("sha256 = \"{digest}\"")),
            entry(&format!("sha256 = \"{digest}\"\nscopes = []")),
            entry(&format!("sha256 = \"{digest}\"\nscopes = [\"all\"]")),
            entry("sha256 = \"abc\"\nscopes = [\"read\"]"),
            entry(&format!(
                "sha256 = \"{digest}\"\nscopes = [\"read\"]\nprefixes = []"
            )),
            entry(&format!(
                "sha256 = \"{digest}\"\nscopes = [\"read\"]\nexpires = \"soon\""
            )),
            entry(&format!(
                "sha256 = \"{digest}\"\nscopes = [\"read\"]\ncolour = \"red\""
            )),
        ];
        for text in table {
            let (_folder, path) = file(&text);
            let error = Tokens::open(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{text}");
            assert!(error.advice().is_some(), "{error}");
        }
        assert!(Tokens::open("/none").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, path) = file("");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        assert!(Tokens::open(&path).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Tokens::open(&path).is_ok());
    }
}
