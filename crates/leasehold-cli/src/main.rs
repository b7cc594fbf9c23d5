//! `leasehold`: run anything under a lock, and see who holds what.
//!
//! `args.rs` (as typed) -> `request.rs` (validated) -> `command/*.rs` (the work) -> `exit.rs` (the exit code).

mod args;
mod child;
mod command;
mod console;
mod engine_url;
mod exit;
mod held;
mod hooks;
mod output;
mod process_tree;
mod request;
mod signals;
mod supervise;
mod terminal;
mod waiting;
mod watchdog;
mod work;

fn main() {
    let outcome = args::Cli::from_command_line().and_then(command::execute);
    output::flush_warnings();
    // Not a return from main, which would spend time on dropping what is in memory.
    std::process::exit(exit::report(outcome));
}
