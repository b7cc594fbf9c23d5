//! `leasehold ids`: unique ids.

use serde_json::json;

use super::Context;
use crate::args::IdsArgs;
use crate::exit::Outcome;
use crate::output;

pub(super) async fn ids(context: Context, args: IdsArgs) -> Outcome {
    let locks = context.connect().await?;
    let pool = locks.id_pool(&args.pool)?;
    for id in pool.take(args.count as usize).await? {
        match context.json {
            true => output::json_line(&json!({"pool": args.pool, "id": id.reveal()}))?,
            false => output::line(&id.reveal())?,
        }
    }
    Ok(0)
}
