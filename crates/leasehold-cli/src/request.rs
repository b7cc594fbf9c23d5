//! The validated arguments of a lock, checked before connecting to an engine.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use leasehold::{Claimant, LockName, LockRequest, Locks, Mode, Result, Ttl, Wait};

use crate::args::{ElectArgs, HookArgs, LockArgs, RunArgs, RunRecipes};

/// Which lock to acquire, and how.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) ttl: Ttl,
    pub(crate) wait: Wait,
    pub(crate) at_least: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    owner: Option<String>,
    reason: Option<String>,
}

impl Request {
    /// Validates the arguments of `acquire`.
    pub(crate) fn new(args: LockArgs) -> Result<Self> {
        Ok(Self {
            name: LockName::new(&args.name)?,
            mode: match args.permits {
                Some(of) => Mode::Permit { of },
                None if args.shared => Mode::Shared,
                None => Mode::Exclusive,
            },
            ttl: Ttl::new(args.ttl)?,
            wait: args.wait,
            at_least: None,
            max_hold: None,
            owner: args.owner,
            reason: args.reason,
        })
    }

    /// Validates the arguments of `run`; returns CMD, the recipe and the hooks as well.
    pub(crate) fn of_run(
        args: RunArgs,
        outermost: Option<&Claimant>,
    ) -> Result<(Self, RunRecipes, HookArgs, Vec<OsString>)> {
        let mut request = Self::new(args.lock)?;
        request.at_least = args.at_least;
        request.max_hold = args.max_hold;
        // A nested run acts for the outermost run, with its label.
        if request.owner.is_none() && outermost.is_none() {
            request.owner = args.command.first().and_then(|command| label(command));
        }
        Ok((request, args.recipe, args.hooks, args.command))
    }

    /// Validates the arguments of `elect`, which waits forever.
    pub(crate) fn of_elect(args: &ElectArgs) -> Result<Self> {
        let command = args.command.first();
        Ok(Self {
            name: LockName::new(&args.name)?,
            mode: Mode::Exclusive,
            ttl: Ttl::new(args.ttl)?,
            wait: Wait::Forever,
            at_least: None,
            max_hold: None,
            owner: args.owner.clone().or_else(|| label(command?)),
            reason: None,
        })
    }

    /// The library's request.
    pub(crate) fn to(&self, locks: &Locks) -> LockRequest {
        let request = locks.lock(&self.name).ttl(self.ttl);
        let mut request = request.wait(self.wait).mode(self.mode);
        if let Some(owner) = &self.owner {
            request = request.label(owner);
        }
        if let Some(reason) = &self.reason {
            request = request.reason(reason);
        }
        if let Some(time) = self.at_least {
            request = request.hold_at_least(time);
        }
        if let Some(time) = self.max_hold {
            request = request.max_hold(time);
        }
        request
    }
}

/// The command's name as a valid owner label.
fn label(command: &OsStr) -> Option<String> {
    let name = Path::new(command).file_name()?.to_string_lossy();
    let printable = name.chars().filter(|c| !c.is_control());
    let label: String = printable.take(60).collect();
    Some(label).filter(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_name_becomes_the_label() {
        assert_eq!(label(OsStr::new("/usr/bin/make")).unwrap(), "make");
        assert_eq!(label(OsStr::new("a\nb")).unwrap(), "ab");
        assert!(label(OsStr::new("x".repeat(300).as_str())).unwrap().len() <= 255);
        assert_eq!(label(OsStr::new("/")), None);
    }
}
