//! Where the engine's URL comes from: the arguments, the environment, a file that keeps its password out of both, or the
//! configuration files.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use leasehold::{Error, ErrorKind, Registry, Result};
use nix::fcntl::OFlag;
use serde::Deserialize;

/// The URL that is used if none is given anywhere.
const DEFAULT: &str = "sqlite:";

/// The configuration of the whole machine. That of the user comes first.
const SYSTEM_CONFIG: &str = "/etc/leasehold.toml";

/// More than any URL or configuration has.
const LARGEST: u64 = 1 << 20;

/// The engine's URL. What is given as an argument comes before the environment, and that before the configuration files.
/// An empty variable counts as unset, because scripts write `LEASEHOLD_URL=` to unset it.
pub(crate) fn find(url: Option<&str>, url_file: Option<&Path>) -> Result<String> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    let given = match (url, url_file) {
        // Not the same as no --url: a job whose variable was not set would have its lock on each host alone.
        (Some(""), _) => {
            return Err(invalid("--url is empty")
                .advise("give a URL such as sqlite:/srv/locks.db, or leave the option out"));
        }
        (Some(url), _) => Some(url.to_owned()),
        (None, Some(file)) => Some(read_url(file)?),
        (None, None) => match (variable("LEASEHOLD_URL"), variable("LEASEHOLD_URL_FILE")) {
            (Some(url), _) => Some(url.into_string().map_err(|_| {
                invalid("$LEASEHOLD_URL is not UTF-8").advise("encode such bytes as %FF")
            })?),
            (None, Some(file)) => Some(read_url(Path::new(&file))?),
            (None, None) => None,
        },
    };
    match given {
        Some(url) => match url.strip_prefix('@') {
            Some(name) => Config::read(&config_files())?.named(name),
            None => Ok(url),
        },
        None => Config::read(&config_files())?.default_url(),
    }
}

/// The user's file, then that of the machine.
fn config_files() -> Vec<PathBuf> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let home = || absolute("HOME").map(|home| home.join(".config"));
    let user = absolute("XDG_CONFIG_HOME").or_else(home);
    let user = user.map(|folder| folder.join("leasehold/config.toml"));
    user.into_iter().chain([SYSTEM_CONFIG.into()]).collect()
}

/// The one line of a file that holds a URL.
fn read_url(path: &Path) -> Result<String> {
    let read = open(path, Kind::UrlFile).and_then(|file| read_trusted(file, path));
    let text = read.map_err(|error| error.advise_missing(path))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    match (lines.next(), lines.next()) {
        (Some(url), None) => match url.starts_with('@') {
            true => Ok(url.to_owned()),
            false => checked(url, path.display()),
        },
        (None, _) => Err(invalid(format!("{} is empty", path.display()))
            .advise("write the engine's URL into it, such as redis://:password@host:6379")),
        (Some(_), Some(_)) => Err(invalid(format!("{} has several lines", path.display()))
            .advise("write the engine's URL into it, and nothing else")),
    }
}

/// The URL, if it can be meant. Whoever reads an error about a URL that they did not type must know where it is written.
fn checked(url: &str, place: impl Display) -> Result<String> {
    match Registry::builtin().parse(url) {
        Ok(_) => Ok(url.to_owned()),
        Err(error) => Err(error.with_context(place)),
    }
}

/// What the configuration files say together.
#[derive(Debug, Default)]
struct Config {
    /// With the file that has it.
    url: Option<(PathBuf, String)>,
    /// Each with the file that names it.
    urls: BTreeMap<String, (PathBuf, String)>,
    /// Where names could be.
    files: Vec<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    url: Option<String>,
    #[serde(default)]
    urls: BTreeMap<String, String>,
}

impl Config {
    /// Reads the files that are there; the first that says something counts.
    fn read(files: &[PathBuf]) -> Result<Self> {
        let mut config = Self {
            files: files.to_vec(),
            ..Self::default()
        };
        for path in files {
            let read = open(path, Kind::Configuration);
            let text = match read.and_then(|file| read_trusted(file, path)) {
                Ok(text) => text,
                Err(Unreadable::Missing(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            // The message of the parser shows the line, and that may have a password in it.
            let file: ConfigFile = toml::from_str(&text).map_err(|cause| {
                let line = cause
                    .span()
                    .map_or(1, |span| 1 + text[..span.start].matches('\n').count());
                invalid(format!("{}:{line}: {}", path.display(), cause.message()))
                    .advise("write url = \"...\" for the default, and names for URLs under [urls], such as prod = \"...\"")
            })?;
            config.url = config.url.or(file.url.map(|url| (path.clone(), url)));
            for (name, url) in file.urls {
                config.urls.entry(name).or_insert((path.clone(), url));
            }
        }
        Ok(config)
    }

    fn default_url(&self) -> Result<String> {
        let Some((file, url)) = &self.url else {
            return Ok(DEFAULT.to_owned());
        };
        let place = format!("{}: url", file.display());
        match url.strip_prefix('@') {
            Some(name) => self.named(name).map_err(|error| error.with_context(place)),
            None => checked(url, place),
        }
    }

    fn named(&self, name: &str) -> Result<String> {
        if let Some((file, url)) = self.urls.get(name) {
            return checked(url, format!("{}: @{name}", file.display()));
        }
        let files: Vec<_> = self
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let files = files.join(" or ");
        let known: Vec<_> = self.urls.keys().map(|name| format!("@{name}")).collect();
        let error = invalid(format!("there is no URL named @{name}"));
        Err(error.advise(match known.as_slice() {
            [] => format!("name it in {files} under [urls]: {name} = \"...\""),
            known => format!(
                "the known names are {}; others can be added in {files}",
                known.join(", ")
            ),
        }))
    }
}

/// Why a file cannot be used.
enum Unreadable {
    Missing(io::Error),
    Other(Error),
}

impl From<Unreadable> for Error {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Missing(cause) => invalid(cause.to_string()).caused_by(cause),
            Unreadable::Other(error) => error,
        }
    }
}

impl Unreadable {
    fn advise_missing(self, path: &Path) -> Error {
        match self {
            Unreadable::Missing(cause) => invalid(format!("there is no file {}", path.display()))
                .advise("write the engine's URL into it, or use --url")
                .caused_by(cause),
            Unreadable::Other(error) => error,
        }
    }
}

/// What a file is to be used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Configuration,
    /// May be a pipe: `--url-file <(command)`.
    UrlFile,
}

fn open(path: &Path, kind: Kind) -> std::result::Result<File, Unreadable> {
    let mut options = File::options();
    options.read(true);
    if kind == Kind::Configuration {
        // A named pipe would let every command wait for somebody who writes into it.
        options.custom_flags(OFlag::O_NONBLOCK.bits());
    }
    let file = options
        .open(path)
        .map_err(|cause| unreadable(path, cause))?;
    let is = file
        .metadata()
        .map_err(|cause| unreadable(path, cause))?
        .file_type();
    if is.is_dir() || kind == Kind::Configuration && !is.is_file() {
        let what = match is.is_dir() {
            true => "is a folder",
            false => "is not a regular file",
        };
        return Err(Unreadable::Other(
            invalid(format!("{} {what}", path.display())).advise(match kind {
                Kind::Configuration => "remove it, or put a configuration file in its place",
                Kind::UrlFile => "name a file that has the engine's URL in it",
            }),
        ));
    }
    Ok(file)
}

fn unreadable(path: &Path, cause: io::Error) -> Unreadable {
    let advice = match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            return Unreadable::Missing(cause);
        }
        io::ErrorKind::PermissionDenied => "let this user read it",
        io::ErrorKind::InvalidData => {
            let what = format!("{} is not UTF-8", path.display());
            let advice = "write it in UTF-8, and other bytes of a URL as %FF";
            return Unreadable::Other(invalid(what).advise(advice).caused_by(cause));
        }
        _ => "check the file and its disk",
    };
    Unreadable::Other(
        invalid(format!("cannot read {}: {cause}", path.display()))
            .advise(advice)
            .caused_by(cause),
    )
}

/// Reads a file that nobody but its owner, this user or root, may write: whoever writes it decides where the locks are.
fn read_trusted(file: File, path: &Path) -> std::result::Result<String, Unreadable> {
    let about = file.metadata().map_err(|cause| unreadable(path, cause))?;
    let refused = |why: String, advice: String| {
        Unreadable::Other(invalid(format!("{} is refused: {why}", path.display())).advise(advice))
    };
    if about.mode() & 0o022 != 0 {
        let advice = format!("chmod go-w {}", path.display());
        return Err(refused("other users may write it".to_owned(), advice));
    }
    let user = nix::unistd::geteuid().as_raw();
    if about.uid() != 0 && about.uid() != user {
        let why = format!("it belongs to another user (uid {})", about.uid());
        return Err(refused(why, format!("chown {user} {}", path.display())));
    }
    let mut text = String::new();
    let read = file
        .take(LARGEST)
        .read_to_string(&mut text)
        .map_err(|cause| unreadable(path, cause))?;
    if read as u64 == LARGEST {
        let advice = "see whether it is the right file".to_owned();
        return Err(refused("it is larger than 1 MiB".to_owned(), advice));
    }
    Ok(text)
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_file_comes_before_the_machines() {
        let folder = tempfile::tempdir().unwrap();
        let (user, system) = (folder.path().join("user"), folder.path().join("system"));
        std::fs::write(&user, "[urls]\nprod = 'redis://mine'\n").unwrap();
        std::fs::write(
            &system,
            "url = '@prod'\n[urls]\nprod = 'redis://all'\ntest = 'memory:'\n",
        )
        .unwrap();
        let files = [user, system, folder.path().join("missing")];
        let config = Config::read(&files).unwrap();
        assert_eq!(config.named("prod").unwrap(), "redis://mine");
        assert_eq!(config.named("test").unwrap(), "memory:");
        assert!(config.named("").is_err());
        assert_eq!(config.default_url().unwrap(), "redis://mine");
        let none = Config::read(&files[2..]).unwrap();
        assert_eq!(none.default_url().unwrap(), DEFAULT);
    }
}
