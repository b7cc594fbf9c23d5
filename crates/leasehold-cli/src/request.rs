//! What is asked of a lock, checked before any engine is asked.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use leasehold::{Claimant, LockName, LockRequest, Locks, Mode, Result, Ttl, Wait};

use crate::args::{ElectArgs, LockArgs, RunArgs, RunRecipes};

/// A claim on a lock, ready to be sent.
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
    /// Checks what `acquire` asks for.
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

    /// Checks what `run` asks for; returns the rest as well.
    pub(crate) fn of_run(
        args: RunArgs,
        outermost: Option<&Claimant>,
    ) -> Result<(Self, RunRecipes, Vec<std::ffi::OsString>)> {
        let mut request = Self::new(args.lock)?;
        request.at_least = args.at_least;
        request.max_hold = args.max_hold;
        // Within another run the label is that of the outermost, as all of the claimant is.
        if request.owner.is_none() && outermost.is_none() {
            request.owner = args.command.first().and_then(|command| label(command));
        }
        Ok((request, args.recipe, args.command))
    }

    /// Checks what `elect` asks for: the lock, however long it takes.
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

    /// As the library wants it.
    pub(crate) fn to(&self, locks: &Locks) -> LockRequest {
        let mut request = locks.lock(&self.name).ttl(self.ttl.get());
        request = match self.wait {
            Wait::UpTo(time) => request.wait(time),
            Wait::Forever => request.wait_forever(),
        };
        request = match self.mode {
            Mode::Exclusive => request,
            Mode::Shared => request.shared(),
            Mode::Permit { of } => request.permits(of),
        };
        if let Some(owner) = &self.owner {
            request = request.owner(owner);
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

/// The command's name, made fit to be an owner's label.
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
    fn a_command_labels_its_owner() {
        assert_eq!(label(OsStr::new("/usr/bin/make")).unwrap(), "make");
        assert_eq!(label(OsStr::new("a\nb")).unwrap(), "ab");
        assert!(label(OsStr::new("x".repeat(300).as_str())).unwrap().len() <= 255);
        assert_eq!(label(OsStr::new("/")), None);
    }
}
