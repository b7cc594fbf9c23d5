//! `leasehold release`: a lock that a script holds itself.

use leasehold::Released;
use serde_json::json;

use super::Context;
use crate::args::ReleaseArgs;
use crate::exit::Outcome;
use crate::output;

pub(super) async fn release(context: Context, args: ReleaseArgs) -> Outcome {
    let name = leasehold::LockName::new(&args.name)?;
    let id = args.claim.read()?;
    let locks = context.connect().await?;
    let released = locks.resume(&name, id)?.release().await?;
    let was_held = released == Released::Yes;
    match context.json {
        true => output::json_line(&json!({"name": name.as_str(), "released": was_held}))?,
        false => output::line(if was_held { "released" } else { "not held" })?,
    }
    Ok(0)
}
