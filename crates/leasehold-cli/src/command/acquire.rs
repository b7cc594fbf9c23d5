//! `leasehold acquire`: a lock that a script renews and releases itself.

use std::io;

use leasehold::engine::{Expiry, Reach};
use leasehold::{Claimant, Error, ErrorKind, LeaseState, Locks, LossReason, Ttl};
use serde_json::json;

use super::Context;
use crate::args::{AcquireArgs, Until};
use crate::exit::{Failure, Outcome, unexpected};
use crate::output::{self, lock::millis};
use crate::request::Request;
use crate::signals::Signals;
use crate::waiting;

pub(super) async fn acquire(context: Context, args: AcquireArgs) -> Outcome {
    let mut request = Request::new(args.lock)?;
    if let Some(until) = args.until {
        request.ttl = sticky_ttl(until)?;
    }
    let mut locks = context.connect_for(&mut request).await?;
    if locks.capabilities().reach == Reach::Process {
        return Err(of_this_process(&locks, &request).into());
    }
    if let Some(until) = args.until {
        locks = of_no_process(&locks, &request, until)?;
    }
    let mut signals = Signals::listen()?;
    let lease = waiting::acquire(&locks, &request, &mut signals, context.json).await?;
    if lease.remaining() < request.ttl.get() / 2 {
        // It was handed over for a moment only, until it is renewed.
        lease.renew().await?;
    }
    let (token, valid_ms) = (lease.token().get(), millis(lease.remaining()));
    let claim = lease.claim_id().reveal();
    let name = request.name.as_str();
    let printed = match context.json {
        true => output::json_line(&json!({
            "name": name,
            "claim": claim,
            "token": token,
            "valid_ms": valid_ms,
        })),
        false => output::line(&format!(
            "claim={claim}\ntoken={token}\nvalid_ms={valid_ms}"
        )),
    };
    match printed {
        Ok(()) => match lease.state() {
            // Nothing renews the lease while the write blocks.
            LeaseState::Lost(reason) => {
                let _ = lease.release().await;
                Err(lost_unread(&reason)
                    .during("acquire", locks.location())
                    .on(&request.name)
                    .into())
            }
            _ => {
                lease.detach();
                Ok(0)
            }
        },
        // Nobody knows the claim, so nobody else could release it.
        Err(failure) => {
            let _ = lease.release().await;
            Err(match failure {
                // A script must not take this for success.
                Failure::StdoutClosed => {
                    unexpected("cannot write to stdout", io::ErrorKind::BrokenPipe)
                }
                failure => failure,
            })
        }
    }
}

fn sticky_ttl(until: Until) -> leasehold::Result<Ttl> {
    let left = until.time_left();
    if left < Ttl::MIN.get() {
        let error = Error::new(ErrorKind::InvalidConfig, "--until is in the past");
        return Err(error.advise("give a time in UTC, or a time from now such as 2days"));
    }
    Ttl::sticky(left)
}

fn of_this_process(locks: &Locks, request: &Request) -> Error {
    let what = "a lock of this engine ends with the process that acquired it, which is this one";
    Error::new(ErrorKind::Unsupported, what)
        .advise("use another engine, such as sqlite:")
        .during("acquire", locks.location())
        .on(&request.name)
}

/// Claims are those of no process: a process id of 0 marks them.
fn of_no_process(locks: &Locks, request: &Request, until: Until) -> leasehold::Result<Locks> {
    let able = locks.capabilities();
    let refused = |what, advice| {
        let error = Error::new(ErrorKind::Unsupported, what).advise(advice);
        Err(error.during("acquire", locks.location()).on(&request.name))
    };
    if able.expiry == Expiry::Session {
        return refused(
            "a lock of this engine ends with the process that acquired it, so nobody can hold it with --until",
            "keep it held with `leasehold run NAME -- sleep infinity`, or use another engine",
        );
    }
    if able.expiry == Expiry::Observed && !matches!(until, Until::Forever) {
        return refused(
            "this engine has no clock: each process counts the time of a lock from when it first sees it, so it would not end at that time",
            "hold it with --until forever and release it yourself, or let the clocks of all hosts count, with max_clock_skew=5s in the URL",
        );
    }
    let me = locks.claimant();
    locks.on_behalf_of(Claimant::new(&me.label, &me.host, 0))
}

fn lost_unread(reason: &LossReason) -> Error {
    let what = format!("the lease was lost while it was being printed: {reason}");
    Error::new(ErrorKind::LeaseLost, what)
        .advise("read the output at once, or use a longer --ttl; then acquire again")
}
