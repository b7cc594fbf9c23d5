//! `leasehold acquire`: for scripts that release by themselves.

use serde_json::json;

use super::Context;
use crate::args::AcquireArgs;
use crate::exit::Outcome;
use crate::output::{self, lock::millis};
use crate::request::Request;
use crate::signals::Signals;
use crate::waiting;

pub(super) async fn acquire(context: Context, args: AcquireArgs) -> Outcome {
    let request = Request::new(args.lock)?;
    let locks = context.connect().await?;
    let mut signals = Signals::listen(false)?;
    let lease = waiting::obtain(&locks, &request, &mut signals, context.json).await?;
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
        Ok(()) => {
            lease.detach();
            Ok(0)
        }
        // Nobody has learnt the claim, so nobody could release it.
        Err(failure) => {
            let _ = lease.release().await;
            Err(failure)
        }
    }
}
