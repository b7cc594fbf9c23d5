//! Claims: who requests which lock, in which mode, and for how long.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// One request for a lock, as engines receive it. Users build a [`LockRequest`](crate::LockRequest) instead.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Claim {
    /// The lock.
    pub name: LockName,
    /// Identifies the claim. It is a secret: anyone who knows it can renew and release the lock.
    pub id: ClaimId,
    /// How the lock is to be held.
    pub mode: Mode,
    /// For how long the lock is granted unless renewed.
    pub ttl: Ttl,
    /// Whether a refused attempt leaves the claim in the lock's queue.
    pub queues: bool,
    /// Who makes the claim; shown to people.
    pub claimant: Arc<Claimant>,
    /// Why the lock is requested; shown to people.
    pub reason: Option<Arc<str>>,
}

impl Claim {
    /// A claim of this process on a lock, in exclusive mode, with the default TTL, that does not queue. Set the fields that should
    /// differ.
    pub fn new(name: LockName, id: ClaimId) -> Self {
        Self {
            name,
            id,
            mode: Mode::Exclusive,
            ttl: Ttl::DEFAULT,
            queues: false,
            claimant: Arc::new(Claimant::this_process()),
            reason: None,
        }
    }
}

#[cfg(test)]
impl Claim {
    /// One for unit tests, which queues.
    pub(crate) fn example(nth: u8) -> Self {
        let (name, id) = (LockName::new("x").unwrap(), [nth; 16]);
        Self {
            queues: true,
            ..Self::new(name, ClaimId::from_bytes(id))
        }
    }
}

/// A source of claim ids other than random ones.
#[async_trait]
pub(crate) trait ClaimIds: std::fmt::Debug + Send + Sync {
    /// An id that no claim has had before.
    async fn next(&self) -> Result<ClaimId>;
}

/// Who makes a claim. It is shown to people and identifies nobody: what authenticates a claim is its [`ClaimId`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Claimant {
    /// A label; by default the program's name.
    pub label: String,
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
}

impl Claimant {
    /// A process on a host, under this label.
    pub fn new(label: impl Into<String>, host: impl Into<String>, pid: u32) -> Self {
        Self {
            label: label.into(),
            host: host.into(),
            pid,
        }
    }

    /// This process.
    pub fn this_process() -> Self {
        Self {
            label: program_name(),
            host: host_name(),
            pid: std::process::id(),
        }
    }
}

fn program_name() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .filter(|name| check_text("label", name, 255).is_ok())
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

/// Labels and reasons end up on terminals and web pages: no control characters, bounded.
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

/// The id of a claim: 128 bits, random from the operating system or from an [`IdPool`](crate::recipe::IdPool). It is a secret, since
/// anyone who knows it can renew and release the lock.
///
/// Its `Debug` output is `ClaimId(…)`; [`ClaimId::reveal`] returns the digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// A new random id.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unexpected`] if the operating system provides no random bits.
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

    /// The id as 32 hexadecimal digits. Keep them secret: do not log them.
    pub fn reveal(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// A seed for random delays that differs from claim to claim and reveals nothing of the id:
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

/// How a lock is held. An engine refuses a mode that it does not know as `Unsupported`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder.
    #[default]
    Exclusive,
    /// By any number of readers at a time. A writer uses [`Mode::Exclusive`].
    Shared,
    /// By up to `of` holders at a time, as a semaphore. All claims on the lock must give the same number.
    Permit {
        /// How many permits the lock has.
        of: u32,
    },
}

impl Mode {
    /// Whether a claim of this mode can be granted while claims of these modes hold the lock.
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

    /// The mode as engines store it: 0 for exclusive, -1 for shared, else the number of permits.
    pub fn to_number(self) -> i64 {
        match self {
            Mode::Exclusive => 0,
            Mode::Shared => -1,
            Mode::Permit { of } => of.into(),
        }
    }

    /// The mode for which [`to_number`](Mode::to_number) returns this number.
    pub fn from_number(number: i64) -> Self {
        match number {
            0 => Mode::Exclusive,
            -1 => Mode::Shared,
            of => Mode::Permit {
                of: u32::try_from(of.unsigned_abs()).unwrap_or(u32::MAX),
            },
        }
    }

    /// Checks that two claims on one lock agree about its number of permits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if both are permits and the numbers differ.
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

    /// Checks that a claim asks for the mode in which it holds the lock already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if it holds the lock in another mode.
    pub fn is_still(self, held: Mode) -> Result<()> {
        if self == held {
            return Ok(());
        }
        let what = format!(
            "this claim id is in use: the claim holds the lock in {held} mode, not in {self} mode"
        );
        Err(Error::new(ErrorKind::InvalidConfig, what).advise("use a new claim id"))
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
    /// The shortest TTL, 10 ms.
    pub const MIN: Ttl = Ttl(Duration::from_millis(10));
    /// The longest TTL, 24 h.
    pub const MAX: Ttl = Ttl(Duration::from_secs(24 * 60 * 60));
    /// The TTL of a request that sets none, 30 s.
    pub const DEFAULT: Ttl = Ttl(Duration::from_secs(30));

    /// A TTL of this time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if it is shorter than [`MIN`](Self::MIN) or longer than [`MAX`](Self::MAX).
    pub fn new(time: Duration) -> Result<Self> {
        if time < Self::MIN.0 || time > Self::MAX.0 {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "a TTL of {} is out of range",
                    humantime::format_duration(time)
                ),
            )
            .advise("use 10ms to 24h; a lock is renewed for as long as you hold it"));
        }
        Ok(Self(time))
    }

    /// The TTL of a lock that is held until somebody releases or breaks it, 10 years.
    pub const FOREVER: Ttl = Ttl(Duration::from_secs(3_652 * 24 * 60 * 60));

    /// A TTL for a lock that nobody renews, such as a freeze of deployments over a weekend. Unlike that of [`new`](Self::new), it may be
    /// longer than [`MAX`](Self::MAX): others have to wait for as long, whatever becomes of the process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if it is shorter than [`MIN`](Self::MIN) or longer than [`FOREVER`](Self::FOREVER).
    pub fn sticky(time: Duration) -> Result<Self> {
        match (Self::MIN.0..=Self::FOREVER.0).contains(&time) {
            true => Ok(Self(time)),
            false => Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "a lock cannot be held for {}",
                    humantime::format_duration(time)
                ),
            )
            .advise("use 10ms to 10 years, or Ttl::FOREVER")),
        }
    }

    /// The time.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// For how long the holder may rely on a grant, counted from before the request was sent: the
    /// TTL less 1 % and 2 ms, which allows for clocks that run at slightly different speeds and for late timers.
    pub fn validity(self) -> Duration {
        Self::validity_of(self.0)
    }

    pub(crate) fn validity_of(ttl: Duration) -> Duration {
        ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = Error;

    fn try_from(time: Duration) -> Result<Self> {
        Self::new(time)
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
        assert!(Ttl::sticky(Duration::from_secs(86_401)).is_ok());
        assert!(Ttl::sticky(Ttl::FOREVER.get() + Duration::from_secs(1)).is_err());
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
