//! `leasehold completions`: generated from the same definitions as the help.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::exit::Outcome;
use crate::output;

pub(super) fn completions(args: CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut script);
    output::bytes(&script)?;
    Ok(0)
}
