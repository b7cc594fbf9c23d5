//! `leasehold`: run anything under a lock, and see who holds what.
//!
//! `args.rs` (as typed) -> `request.rs` (checked) -> `command/*.rs` (the work) -> `exit.rs` (the exit code).

mod args;
mod child;
mod command;
mod exit;
mod held;
mod output;
mod process_tree;
mod request;
mod signals;
mod supervise;
mod terminal;
mod waiting;
mod work;

fn main() {
    let outcome = args::Cli::from_command_line().and_then(command::execute);
    // Not a return from main: what is still in memory needs no tidying up, and that takes time.
    std::process::exit(exit::report(outcome));
}
