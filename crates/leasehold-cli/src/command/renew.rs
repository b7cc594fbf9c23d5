//! `leasehold renew`: for scripts that hold a lock themselves.

use leasehold::{Error, ErrorKind, LockName, Ttl};
use serde_json::json;

use super::Context;
use crate::args::RenewArgs;
use crate::exit::Outcome;
use crate::output::{self, lock::millis};

pub(super) async fn renew(context: Context, args: RenewArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let ttl = Ttl::new(args.ttl)?;
    let locks = context.connect().await?;
    let claim = locks.resume(&name, args.claim.id)?;
    let Some(grant) = claim.renew(ttl.get()).await? else {
        return Err(Error::new(
            ErrorKind::LeaseLost,
            "not held by this claim: it has expired, or was released or broken",
        )
        .advise("stop the work, or check its writes with the fencing token; then acquire again")
        .during("renew", locks.location())
        .on(&name)
        .into());
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
    Ok(0)
}
