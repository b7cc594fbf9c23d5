//! What is asked: a claim on a lock, by one claimant, in one mode, for a bounded time.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// One request for a lock. What an engine gets to see.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The lock.
    pub name: LockName,
    /// Signs the claim: who knows it can renew and release.
    pub id: ClaimId,
    /// How the lock is to be held.
    pub mode: Mode,
    /// For how long it is granted, unless renewed.
    pub ttl: Ttl,
    /// Whether a refused attempt leaves the claim in the lock's queue.
    pub queues: bool,
    /// Who asks, for people to read.
    pub claimant: Arc<Claimant>,
    /// Why, for people to read.
    pub reason: Option<Arc<str>>,
}

/// Who asks, for people to read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claimant {
    /// A label; by default the program's name.
    pub owner: String,
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
}

impl Claimant {
    /// This process.
    pub fn this_process() -> Self {
        Self {
            owner: program_name(),
            host: host_name(),
            pid: std::process::id(),
        }
    }
}

fn program_name() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .filter(|name| check_text("owner", name, 255).is_ok())
        .unwrap_or_else(|| "unknown".to_owned())
}

fn host_name() -> String {
    #[cfg(unix)]
    let name = nix::unistd::gethostname()
        .ok()
        .map(|name| name.to_string_lossy().into_owned());
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").ok();
    name.unwrap_or_else(|| "unknown".to_owned())
}

/// Owner labels and reasons end up on terminals and web pages: no control characters, bounded.
pub(crate) fn check_text(what: &str, text: &str, max_bytes: usize) -> Result<()> {
    if text.is_empty() || text.len() > max_bytes || text.chars().any(char::is_control) {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("the {what} {text:?} cannot be used"),
        )
        .advise(format!(
            "use 1 to {max_bytes} bytes of text without control characters"
        )));
    }
    Ok(())
}

/// 128 bits: random ones from the operating system, or those of an [`IdPool`](crate::recipe::IdPool). A secret: it is what signs the lock.
///
/// It prints as `ClaimId(…)`; [`ClaimId::reveal`] gives the digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// A new one.
    pub fn random() -> Result<Self> {
        let mut bits = [0; 16];
        fill_with_random(&mut bits)?;
        Ok(Self(bits))
    }

    /// The id with these bits.
    pub const fn from_bytes(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The id as 32 hexadecimal digits, for the one who holds the lock and for the engine.
    pub fn reveal(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// A seed for random delays that differs from claim to claim and tells nothing of the id:
    /// the id cannot be found from what [`Backoff`](crate::backoff::Backoff) makes of it.
    pub(crate) fn seed(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        static STATE: std::sync::OnceLock<RandomState> = std::sync::OnceLock::new();
        STATE.get_or_init(RandomState::new).hash_one(self.0)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimId(…)")
    }
}

impl FromStr for ClaimId {
    type Err = Error;

    fn from_str(digits: &str) -> Result<Self> {
        let is_id = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(digits, 16) {
            Ok(bits) if is_id => Ok(Self(bits.to_be_bytes())),
            _ => Err(
                Error::new(ErrorKind::InvalidConfig, "this is not a claim id")
                    .advise("give the 32 hexadecimal digits that `acquire` printed"),
            ),
        }
    }
}

/// Random bits from the operating system, fit for secrets.
pub(crate) fn fill_with_random(bits: &mut [u8]) -> Result<()> {
    getrandom::fill(bits).map_err(|cause| {
        Error::new(
            ErrorKind::Unexpected,
            "the operating system gave no random bits",
        )
        .caused_by(cause)
    })
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// By one.
    #[default]
    Exclusive,
    /// By many readers, or by one writer (which asks for [`Mode::Exclusive`]).
    Shared,
    /// By up to `of` at a time: a semaphore. All who use the lock say the same number.
    Permit {
        /// How many permits the lock has.
        of: u32,
    },
}

impl Mode {
    /// Whether a claim of this mode can be granted beside those who hold the lock now.
    pub fn fits(self, holders: impl IntoIterator<Item = Mode>) -> bool {
        let mut held = 0;
        let all_alike = holders.into_iter().all(|holder| {
            held += 1;
            matches!(
                (self, holder),
                (Mode::Shared, Mode::Shared) | (Mode::Permit { .. }, Mode::Permit { .. })
            )
        });
        all_alike
            && match self {
                Mode::Permit { of } => held < of,
                Mode::Exclusive | Mode::Shared => true,
            }
    }

    /// Refuses a claim that counts the lock's permits otherwise than one already there.
    pub fn agrees_with(self, other: Mode) -> Result<()> {
        match (self, other) {
            (Mode::Permit { of: asked }, Mode::Permit { of: there }) if asked != there => {
                Err(Error::new(
                    ErrorKind::InvalidConfig,
                    format!("this claim says the lock has {asked} permits, but it is in use with {there}"),
                )
                .advise("let all claims on it say the same number, or use another name"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permit { of } => write!(f, "permit of {of}"),
        }
    }
}

/// How long a grant lasts unless renewed: 10 ms to 24 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest.
    pub const MIN: Ttl = Ttl(Duration::from_millis(10));
    /// The longest.
    pub const MAX: Ttl = Ttl(Duration::from_secs(24 * 60 * 60));
    /// What is used if nothing is said.
    pub const DEFAULT: Ttl = Ttl(Duration::from_secs(30));

    /// Checks the time.
    pub fn new(time: Duration) -> Result<Self> {
        if time < Self::MIN.0 || time > Self::MAX.0 {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "a TTL of {} is out of range",
                    humantime::format_duration(time)
                ),
            )
            .advise("use 10ms to 24h; keep-alive renews it for as long as you hold the lock"));
        }
        Ok(Self(time))
    }

    /// The time.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// For how long the holder may rely on a grant, counted from before the request was sent: the
    /// TTL less 1 % and 2 ms, so that clocks that run apart and late timers do no harm.
    pub fn validity(self) -> Duration {
        self.0
            .saturating_sub(self.0 / 100 + Duration::from_millis(2))
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fits_beside_whom() {
        use Mode::{Exclusive, Permit, Shared};
        assert!(Exclusive.fits([]));
        assert!(!Exclusive.fits([Exclusive]));
        assert!(!Exclusive.fits([Shared]));
        assert!(!Exclusive.fits([Permit { of: 2 }]));
        assert!(Shared.fits([Shared, Shared]));
        assert!(!Shared.fits([Exclusive]));
        assert!(!Shared.fits([Permit { of: 2 }]));
        assert!(Permit { of: 2 }.fits([Permit { of: 2 }]));
        assert!(!Permit { of: 2 }.fits([Permit { of: 2 }, Permit { of: 2 }]));
        assert!(!Permit { of: 2 }.fits([Exclusive]));
    }

    #[test]
    fn ttls_out_of_range_are_refused_with_advice() {
        for bad in [
            Duration::ZERO,
            Duration::from_millis(9),
            Duration::from_secs(86_401),
        ] {
            let error = Ttl::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.advice().unwrap().contains("10ms to 24h"));
        }
        assert!(Ttl::new(Duration::from_millis(10)).is_ok());
    }

    #[test]
    fn a_claim_id_is_read_back_and_never_printed() {
        let id = ClaimId::random().unwrap();
        assert_eq!(id.reveal().parse::<ClaimId>().unwrap(), id);
        assert!(!format!("{id:?}").contains(&id.reveal()[..4]));
        for bad in ["", "xyz", &"0".repeat(31), &format!("+{}", "0".repeat(31))] {
            assert!(bad.parse::<ClaimId>().is_err(), "{bad:?}");
        }
    }
}
