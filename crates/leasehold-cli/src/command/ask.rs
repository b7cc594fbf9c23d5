//! `leasehold ask`: asks the holder to release a lock.

use leasehold::HolderInfo;
use serde_json::json;

use super::Context;
use crate::args::AskArgs;
use crate::exit::Outcome;
use crate::output::{self, table::who};

pub(super) async fn ask(context: Context, args: AskArgs) -> Outcome {
    let locks = context.connect().await?;
    let asked = locks.request_revoke(&args.name, args.reason).await?;
    if context.json {
        let json = |holder: &HolderInfo| {
            let who = &holder.claimant;
            json!({"owner": who.label, "host": who.host, "pid": who.pid, "token": holder.token.get()})
        };
        let asked: Vec<_> = asked.iter().map(json).collect();
        output::json_line(&json!({"name": args.name, "asked": asked}))?;
    } else if asked.is_empty() {
        output::line("not held")?;
    } else {
        for holder in &asked {
            output::line(&format!("asked {}", who(&holder.claimant)))?;
        }
    }
    Ok(0)
}
