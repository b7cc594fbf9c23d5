//! `leasehold renew`: a lock that a script holds itself.

use leasehold::{Error, ErrorKind, LockName, Ttl};
use serde_json::json;

use super::Context;
use crate::args::RenewArgs;
use crate::exit::Outcome;
use crate::output::{self, lock::millis};

pub(super) async fn renew(context: Context, args: RenewArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let ttl = Ttl::new(args.ttl)?;
    let id = args.claim.read()?;
    let locks = context.connect().await?;
    let claim = locks.resume(&name, id)?;
    let lost = |what: &str| {
        Error::new(ErrorKind::LeaseLost, what)
            .advise("stop the work, or check its writes with the fencing token; then acquire again")
            .during("renew", locks.location())
            .on(&name)
    };
    let Some(grant) = claim.renew(ttl).await? else {
        let what = "not held by this claim: it has expired, or was released or broken";
        return Err(lost(what).into());
    };
    let (token, valid_ms) = (grant.token.get(), millis(claim.remaining(&grant)));
    match context.json {
        true => output::json_line(&json!({
            "name": name.as_str(),
            "token": token,
            "valid_ms": valid_ms,
        }))?,
        false => output::line(&format!("token={token}\nvalid_ms={valid_ms}"))?,
    }
    // This process may have been stopped, or its output not read, for longer than that.
    match claim.remaining(&grant).is_zero() {
        true => Err(lost("the lease was renewed, and has expired since").into()),
        false => Ok(0),
    }
}
