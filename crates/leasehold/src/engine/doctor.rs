//! What a set-up means for locks: what was found, and the verdict that follows from it. `leasehold doctor` prints it.
//!
//! Each engine has a `doctor.rs` with the checks of its own store; `probe.rs` has those that need nothing but the contract. What an engine
//! learns when it connects is found by the same code, and is shown as its warnings.

mod accepted;
mod known;
mod probe;

use std::fmt;
use std::time::Duration;

use humantime::format_duration;

pub(crate) use self::accepted::Accepting;
use self::known::KNOWN;
use crate::claim::Ttl;
use crate::engine::{Engine, Safety};
use crate::error::{Error, Result};
use crate::token::wall_clock_micros;
use crate::url::invalid;

/// By how much a server's clock may differ from ours.
const CLOCK_OFFSET: Duration = Duration::from_secs(1);

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked. The option `accept=` knows the names of the engines of this crate.
    pub id: &'static str,
    /// Where, if there are several servers.
    pub place: Option<String>,
    /// The value that was seen.
    pub seen: String,
    /// What it means for a lock. May be empty if all is well.
    pub means: String,
    /// What to do about it. Empty if there is nothing to do.
    pub fix: String,
    /// How much it matters.
    pub weight: Weight,
    /// Whether the user knows: its name is among those of `accept=` in the URL.
    pub accepted: bool,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Weight {
    /// As it should be.
    Good,
    /// The store does not tell.
    Unknown,
    /// Locks hold, but something may go wrong: waits, errors, leases that are lost.
    Warning,
    /// A failure of the store can let a second holder in.
    Efficiency,
    /// Locks do not hold, or cannot be had.
    Unfit,
}

impl Weight {
    #[allow(dead_code)] // for those who are told in JSON
    pub(crate) fn read(text: &str) -> Option<Self> {
        let all = [
            Weight::Good,
            Weight::Unknown,
            Weight::Warning,
            Weight::Efficiency,
            Weight::Unfit,
        ];
        all.into_iter().find(|weight| weight.as_str() == text)
    }

    /// In JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Weight::Good => "good",
            Weight::Unknown => "unknown",
            Weight::Warning => "warning",
            Weight::Efficiency => "efficiency",
            Weight::Unfit => "unfit",
        }
    }
}

impl Finding {
    fn new(id: &'static str, seen: impl Into<String>, weight: Weight) -> Self {
        Self {
            id,
            place: None,
            seen: seen.into(),
            means: String::new(),
            fix: String::new(),
            weight,
            accepted: false,
        }
    }

    /// The name as this version has it, if it does.
    pub(crate) fn known(id: &str) -> Option<&'static str> {
        KNOWN.iter().find(|known| **known == id).copied()
    }

    /// It is as it should be.
    pub fn good(id: &'static str, seen: impl Into<String>) -> Self {
        Self::new(id, seen, Weight::Good)
    }

    /// It cannot be told, and this is why.
    pub fn unknown(id: &'static str, why: impl Into<String>) -> Self {
        Self::new(id, why, Weight::Unknown)
    }

    /// Locks hold, but something may go wrong.
    pub fn warning(id: &'static str, seen: impl Into<String>) -> Self {
        Self::new(id, seen, Weight::Warning)
    }

    /// A failure of the store can let a second holder in.
    pub fn efficiency(id: &'static str, seen: impl Into<String>) -> Self {
        Self::new(id, seen, Weight::Efficiency)
    }

    /// Locks do not hold, or cannot be had.
    pub fn unfit(id: &'static str, seen: impl Into<String>) -> Self {
        Self::new(id, seen, Weight::Unfit)
    }

    /// What it means for a lock.
    pub fn means(mut self, means: impl Into<String>) -> Self {
        self.means = means.into();
        self
    }

    /// What to do about it.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// Which of several servers it is about.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place = Some(place.to_string());
        self
    }

    /// The judgement of a setting; unknown if the store does not tell it.
    #[allow(dead_code)] // not every engine has settings
    pub(crate) fn of<T>(
        id: &'static str,
        setting: Option<T>,
        judge: impl FnOnce(T) -> Finding,
    ) -> Self {
        match setting {
            Some(setting) => judge(setting),
            None => Self::unknown(id, "the server does not tell"),
        }
    }

    /// Whether something is wrong.
    pub fn is_bad(&self) -> bool {
        self.weight >= Weight::Warning
    }

    /// Why an engine refuses a server.
    pub fn refused(error: &Error) -> Self {
        Self::unfit("refused", error.what())
            .means("leasehold does not keep locks there")
            .fix(error.advice().unwrap_or_default())
    }
}

/// As one line, for people.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        match self.means.as_str() {
            "" => f.write_str(&self.seen)?,
            means => write!(f, "{means} ({})", self.seen)?,
        }
        match self.fix.as_str() {
            "" => Ok(()),
            fix => write!(f, ": {fix}"),
        }
    }
}

/// What a set-up can be trusted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Two never hold a lock at once within its validity.
    Correctness,
    /// Double work is rare.
    Efficiency,
    /// Locks do not hold, or cannot be had.
    Unfit,
}

impl Verdict {
    fn of(promised: Safety, findings: &[Finding]) -> Self {
        match findings.iter().map(|finding| finding.weight).max() {
            Some(Weight::Unfit) => Verdict::Unfit,
            Some(Weight::Efficiency) => Verdict::Efficiency,
            _ if promised == Safety::Efficiency => Verdict::Efficiency,
            _ => Verdict::Correctness,
        }
    }

    /// In JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Correctness => "correctness",
            Verdict::Efficiency => "efficiency",
            Verdict::Unfit => "unfit",
        }
    }
}

/// What [`Locks::doctor`](crate::Locks::doctor) has found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// The engine's URL, without passwords.
    pub location: String,
    /// What the engine promises if it is set up well. Unknown if it was refused.
    pub promised: Option<Safety>,
    /// All that was checked.
    pub findings: Vec<Finding>,
    /// What follows.
    pub verdict: Verdict,
}

impl Report {
    /// Asks the engine, and tries it with locks of its own.
    pub(crate) async fn on(engine: &dyn Engine, ttl: Ttl) -> Self {
        let mut findings = engine.findings(ttl).await;
        findings.extend(probe::probe(engine, ttl).await);
        Self::of(engine, findings)
    }

    /// Asks the engine.
    pub(crate) async fn of_settings(engine: &dyn Engine, ttl: Ttl) -> Self {
        Self::of(engine, engine.findings(ttl).await)
    }

    fn of(engine: &dyn Engine, findings: Vec<Finding>) -> Self {
        let about = engine.about();
        let promised = about.capabilities.safety;
        Self {
            location: about.location,
            promised: Some(promised),
            verdict: Verdict::of(promised, &findings),
            findings,
        }
    }

    /// The report on an engine that refuses its server.
    pub fn refused(error: &Error) -> Self {
        Self {
            location: error.engine().unwrap_or_default().to_owned(),
            promised: None,
            findings: vec![Finding::refused(error)],
            verdict: Verdict::Unfit,
        }
    }

    /// Whether something is wrong that the user has not accepted.
    pub fn warns(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.is_bad() && !finding.accepted)
    }
}

/// The names in `accept=`.
///
/// # Errors
///
/// If one is unknown; the advice lists those that are known.
pub(crate) fn parse_accepted(names: &str) -> Result<Vec<&'static str>> {
    let find = |name: &str| {
        Finding::known(name).ok_or_else(|| {
            invalid(format!("accept={name}: no finding has this name"))
                .advise(format!("the known ones are {}", KNOWN.join(", ")))
        })
    };
    names.split(',').map(find).collect()
}

/// The findings of several servers, each with its address. What is the same everywhere is told once.
#[allow(dead_code)] // not every engine has several
pub(crate) fn together(each: Vec<(String, Vec<Finding>)>) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for (place, findings) in &each {
        for finding in findings {
            let is_everywhere = each.iter().all(|(_, others)| others.contains(finding));
            match is_everywhere && each.len() > 1 {
                true if all.contains(finding) => {}
                true => all.push(finding.clone()),
                false => all.push(finding.clone().at(place)),
            }
        }
    }
    all
}

/// Whether a password goes to other machines in the clear.
#[allow(dead_code)] // not every engine has passwords
pub(crate) fn cleartext<'a>(
    hosts: impl IntoIterator<Item = &'a str>,
    tls: bool,
    has_password: bool,
) -> Finding {
    let is_here = |host: &str| {
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    if tls {
        return Finding::good("cleartext", "TLS");
    }
    let Some(host) = hosts.into_iter().find(|host| !is_here(host)) else {
        return Finding::good("cleartext", "no TLS, within this machine");
    };
    if !has_password {
        return Finding::good("cleartext", "no TLS, and no password");
    }
    Finding::warning("cleartext", format!("a password for {host}, without TLS"))
        .means("whoever reads the network can log in, and take or release any lock")
        .fix("connect over TLS: see the engine's page for the URL")
}

/// How a server's clock compares with ours: it said `server`, in microseconds since 1970, between these two readings of our own wall clock.
#[allow(dead_code)] // not every engine has a clock that can be asked
pub(crate) fn clock_offset(before: u64, server: u64, after: u64) -> Finding {
    let middle = before / 2 + after / 2;
    let error = Duration::from_micros(after.saturating_sub(before) / 2 + 1);
    let offset = Duration::from_micros(server.abs_diff(middle));
    let direction = if server < middle {
        "behind"
    } else {
        "ahead of"
    };
    let seen = format!(
        "{} {direction} ours, give or take {}",
        format_duration(in_millis(offset)),
        format_duration(in_millis(error).max(Duration::from_millis(1)))
    );
    if offset <= CLOCK_OFFSET + error {
        return Finding::good("clock", seen);
    }
    Finding::warning("clock", seen)
        .means("the server's clock is off: tokens follow it, and so do the times that people are shown; after a failover to a server whose clock is right, tokens may be lower than before")
        .fix("let NTP set the clocks of the server and of this machine")
}

/// Our own wall clock, for [`clock_offset`].
#[allow(dead_code)]
pub(crate) fn now() -> u64 {
    wall_clock_micros()
}

pub(crate) fn in_millis(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_worst_finding_decides() {
        let good = Finding::good("eviction", "noeviction");
        let unknown = Finding::unknown("eviction", "?");
        let warning = Finding::warning("memory", "95 %");
        let weak = Finding::efficiency("fsync", "off");
        let unfit = Finding::unfit("alarms", "NOSPACE");
        let (safe, fast) = (Safety::Correctness, Safety::Efficiency);
        for (promised, findings, verdict) in [
            (safe, vec![], Verdict::Correctness),
            (safe, vec![&good, &unknown, &warning], Verdict::Correctness),
            (safe, vec![&weak, &good], Verdict::Efficiency),
            (fast, vec![&good], Verdict::Efficiency),
            (fast, vec![&unfit, &weak], Verdict::Unfit),
        ] {
            let findings: Vec<_> = findings.into_iter().cloned().collect();
            assert_eq!(Verdict::of(promised, &findings), verdict, "{findings:?}");
        }
    }

    #[test]
    fn what_the_user_accepts_is_no_warning_but_still_counts() {
        let mut findings = vec![
            Finding::efficiency("fsync", "off"),
            Finding::unknown("eviction", "?"),
        ];
        accepted::mark(&mut findings, &["fsync", "eviction"]);
        let mut unfit = [Finding::unfit("alarms", "NOSPACE")];
        accepted::mark(&mut unfit, &["alarms"]);
        assert!(!unfit[0].accepted);
        let report = Report {
            location: String::new(),
            promised: Some(Safety::Correctness),
            verdict: Verdict::of(Safety::Correctness, &findings),
            findings,
        };
        assert!(!report.warns());
        assert_eq!(report.verdict, Verdict::Efficiency);
        assert!(report.findings[0].accepted);
        assert!(!report.findings[1].accepted, "nothing is wrong there");
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        assert_eq!(
            parse_accepted("eviction,fsync").unwrap(),
            ["eviction", "fsync"]
        );
        for bad in ["", "evictions", "eviction,", "Eviction"] {
            let error = parse_accepted(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.advice().unwrap().contains("eviction"), "{error}");
        }
        assert!(KNOWN.is_sorted(), "{KNOWN:?}");
    }

    #[test]
    fn a_clock_is_off_only_if_the_round_trip_cannot_explain_it() {
        let second = 1_000_000;
        let now = 1_800_000_000 * second;
        for (before, server, after, weight) in [
            (now, now, now, Weight::Good),
            (now, now - second / 2, now, Weight::Good),
            (now, now + 2 * second, now, Weight::Warning),
            (now, now - 90 * second, now, Weight::Warning),
            // This machine stood still for a while.
            (now, now, now + 5 * second, Weight::Good),
            (now, now + 5 * second, now + 5 * second, Weight::Good),
        ] {
            let finding = clock_offset(before, server, after);
            assert_eq!(finding.weight, weight, "{finding}");
        }
    }

    #[test]
    fn passwords_do_not_leave_the_machine_in_the_clear() {
        for (host, tls, password, weight) in [
            ("10.0.0.7", false, true, Weight::Warning),
            ("db.internal", false, true, Weight::Warning),
            ("10.0.0.7", true, true, Weight::Good),
            ("10.0.0.7", false, false, Weight::Good),
            ("127.0.0.1", false, true, Weight::Good),
            ("::1", false, true, Weight::Good),
            ("localhost", false, true, Weight::Good),
        ] {
            let finding = cleartext(["::1", host], tls, password);
            assert_eq!(finding.weight, weight, "{host}: {finding}");
        }
    }

    #[test]
    fn what_is_the_same_everywhere_is_told_once() {
        let version = Finding::good("server", "7");
        let each = vec![
            (
                "a".to_owned(),
                vec![version.clone(), Finding::good("clock", "1ms")],
            ),
            ("b".to_owned(), vec![version, Finding::good("clock", "2ms")]),
        ];
        let told: Vec<_> = together(each).iter().map(Finding::to_string).collect();
        assert_eq!(told, ["7", "a: 1ms", "b: 2ms"]);
    }

    #[test]
    fn one_line_says_what_it_means_and_what_to_do() {
        let finding = Finding::efficiency("fsync", "fsync off")
            .means("locks may be lost")
            .fix("ALTER SYSTEM SET fsync = on");
        assert_eq!(
            finding.clone().at("h:1").to_string(),
            "h:1: locks may be lost (fsync off): ALTER SYSTEM SET fsync = on"
        );
        assert_eq!(Finding::good("fsync", "fsync on").to_string(), "fsync on");
    }
}
