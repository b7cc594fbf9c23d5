//! Runs all tests, and tells a host that stood still from a bug.
//!
//! Leases are about time. On a host that takes the processor away for a second, a lease that should have been renewed ends, and the test
//! that holds it fails, rightly. The same happens to a server that waits for the disk. So this program measures, beside the tests, for how long it
//! was itself kept from running, from computing for some milliseconds, and from writing a few bytes to the disk. A test that failed after such a moment is run again, three times and alone; it
//! counts as failed unless it passes each time. A test that failed without such a moment counts as failed, and so does everything if more than
//! a few tests needed another run.
//!
//! What the build has written is on the disk before the tests begin: else the disk would be busy with it for minutes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);

/// Tests are made to bear shorter stalls.
const LONG: Duration = Duration::from_millis(150);

/// A stall at any time during a test may be the cause of its failure, and this is the longest that a test may take.
const MAY_MATTER: Duration = Duration::from_secs(300);

const TRIES_ALONE: usize = 3;

/// Several tests run at a time, and one stall can meet all of them.
const MOST_RUN_AGAIN: usize = 10;

/// How often the disk is tried.
const DISK_TICK: Duration = Duration::from_millis(100);

/// How often the processor is tried: a thread that only sleeps is let run at once, even where those that have work to do wait for their turn.
const WORK_TICK: Duration = Duration::from_millis(250);

/// How many rounds of computing take some 10 ms where nothing else runs.
const WORK: u64 = 600_000;

/// Runs `cargo test` on everything.
pub(crate) fn run() -> Result<(), String> {
    if !cargo_test(&["--no-run".to_owned()], true)?.success {
        return Err("the tests do not build".to_owned());
    }
    // Without it the tests run all the same.
    let _ = Command::new("sync").status();
    let stalls = Stalls::watch();
    let seen = cargo_test(&[], true)?;
    if seen.success {
        return Ok(());
    }
    if seen.failures.is_empty() || seen.failures.len() != seen.failed {
        return Err("the tests failed".to_owned());
    }
    let mut report = Vec::new();
    let mut failed = 0;
    for failure in &seen.failures {
        let Failure { name, target, at } = failure;
        let stall = stalls.longest_before(*at);
        let fault = match target {
            _ if stall < LONG => Some(format!("the host stood still for less than {LONG:?}")),
            None => Some("it cannot be run alone".to_owned()),
            Some(_) if seen.failures.len() > MOST_RUN_AGAIN => {
                Some("too many tests failed to run them again".to_owned())
            }
            Some(target) => failure_alone(target, name)?,
        };
        report.push(match fault {
            Some(fault) => {
                failed += 1;
                format!("{name}: FAILED: {fault}")
            }
            None => format!(
                "{name}: failed when the host stood still for {stall:?}, and passed {TRIES_ALONE} times alone"
            ),
        });
    }
    println!("\ntests that failed at first:\n  {}", report.join("\n  "));
    match failed {
        0 => Ok(()),
        count => Err(format!("{count} tests failed")),
    }
}

/// What is wrong with a test when nothing runs beside it.
fn failure_alone(target: &[String], name: &str) -> Result<Option<String>, String> {
    for nth in 1..=TRIES_ALONE {
        let mut arguments = target.to_vec();
        arguments.extend(["--", "--exact", name].map(str::to_owned));
        let seen = cargo_test(&arguments, false)?;
        if !seen.success || seen.passed == 0 {
            return Ok(Some(format!("failed again at run {nth} alone")));
        }
    }
    Ok(None)
}

struct Seen {
    success: bool,
    failures: Vec<Failure>,
    passed: usize,
    failed: usize,
}

struct Failure {
    name: String,
    /// What makes cargo run the test's binary, if it is one that can be chosen.
    target: Option<Vec<String>>,
    at: Instant,
}

fn cargo_test(arguments: &[String], all: bool) -> Result<Seen, String> {
    let broken = |error: std::io::Error| format!("cannot run cargo: {error}");
    let (output, writer) = std::io::pipe().map_err(broken)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--all-features"]);
    if all {
        cargo.arg("--no-fail-fast");
    }
    // One pipe for both, so that lines stay in their order.
    cargo
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(broken)?)
        .stderr(writer);
    let mut running = cargo.spawn().map_err(broken)?;
    // It holds the writing end of the pipe, which would otherwise never end.
    drop(cargo);
    let mut seen = Seen {
        success: false,
        failures: Vec::new(),
        passed: 0,
        failed: 0,
    };
    let mut target = None;
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(broken)?;
        let line = String::from_utf8_lossy(&line);
        let _ = writeln!(std::io::stdout(), "{line}");
        seen.read(&line, &mut target);
    }
    seen.success = running.wait().map_err(broken)?.success();
    Ok(seen)
}

impl Seen {
    fn read(&mut self, line: &str, target: &mut Option<Vec<String>>) {
        if let Some(binary) = line.trim_start().strip_prefix("Running ") {
            *target = target_of(binary);
        } else if line.trim_start().starts_with("Doc-tests ") {
            *target = None;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count(counts, " passed");
            self.failed += count(counts, " failed");
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix("... FAILED"))
        {
            self.failures.push(Failure {
                name: name.trim_end().to_owned(),
                target: target.clone(),
                at: Instant::now(),
            });
        }
    }
}

/// The number before a word in cargo's summary.
fn count(summary: &str, word: &str) -> usize {
    let before = summary.split(word).next().unwrap_or_default();
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

/// How to run only the binary that cargo tells of, such as `tests/it/main.rs (target/debug/deps/it-0123)`.
fn target_of(binary: &str) -> Option<Vec<String>> {
    let (source, path) = binary.split_once(" (")?;
    let file = path.trim_end_matches(')').rsplit('/').next()?;
    let (name, _hash) = file.rsplit_once('-')?;
    Some(match source.strip_prefix("unittests ") {
        Some(source) if source.starts_with("examples/") => vec!["--example".into(), name.into()],
        Some(_) => vec!["--lib".into(), "--bins".into()],
        None => vec!["--test".into(), name.into()],
    })
}

fn compute() {
    for round in 0..WORK {
        std::hint::black_box(round);
    }
}

/// When this process was kept from running or writing, and for how long.
#[derive(Clone)]
struct Stalls(Arc<Mutex<Vec<(Instant, Duration)>>>);

impl Stalls {
    fn watch() -> Self {
        let stalls = Self(Arc::default());
        stalls.repeat(TICK, || {});
        stalls.repeat(WORK_TICK, compute);
        let file = std::env::temp_dir().join(format!("leasehold-disk-{}", std::process::id()));
        if let Ok(disk) = std::fs::File::create(&file) {
            let _ = std::fs::remove_file(&file);
            stalls.repeat(DISK_TICK, move || {
                let _ = (&disk)
                    .write_all(b"stall?\n")
                    .and_then(|()| disk.sync_data());
            });
        }
        stalls
    }

    /// Notes when a short pause and this work take much longer than the pause.
    fn repeat(&self, pause: Duration, work: impl Fn() + Send + 'static) {
        let stalls = self.clone();
        std::thread::spawn(move || {
            loop {
                let before = Instant::now();
                std::thread::sleep(pause);
                work();
                let stalled = before.elapsed().saturating_sub(pause);
                if stalled >= LONG {
                    let mut seen = stalls.0.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.push((Instant::now(), stalled));
                }
            }
        });
    }

    fn longest_before(&self, moment: Instant) -> Duration {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let near = seen.iter().filter(|(at, _)| {
            // The failure may be read a little before the stall is noted.
            *at <= moment + LONG && moment.saturating_duration_since(*at) <= MAY_MATTER
        });
        near.map(|(_, time)| *time).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Seen {
        let mut seen = Seen {
            success: false,
            failures: Vec::new(),
            passed: 0,
            failed: 0,
        };
        let mut target = None;
        for line in lines {
            seen.read(line, &mut target);
        }
        seen
    }

    #[test]
    fn failures_are_read_with_their_binary() {
        let seen = read(&[
            "     Running unittests src/lib.rs (target/debug/deps/leasehold-0a)",
            "test url::tests::bad ... FAILED",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            "     Running tests/it/main.rs (/x/deps/it-0a)",
            "test core::good ... ok",
            "test redis::faults::slow                ... FAILED",
            "test result: FAILED. 20 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            "     Running unittests examples/toy_engine.rs (target/debug/examples/toy_engine-0a)",
            "test toy::expiry ... FAILED",
            "   Doc-tests leasehold",
            "test src/lib.rs - (line 3) ... FAILED",
        ]);
        let failures: Vec<_> = seen
            .failures
            .iter()
            .map(|it| (it.name.as_str(), it.target.as_ref().map(|it| it.join(" "))))
            .collect();
        let target = |text: &str| Some(text.to_owned());
        assert_eq!(
            failures,
            [
                ("url::tests::bad", target("--lib --bins")),
                ("redis::faults::slow", target("--test it")),
                ("toy::expiry", target("--example toy_engine")),
                ("src/lib.rs - (line 3)", None),
            ]
        );
        assert_eq!((seen.passed, seen.failed), (23, 2));
    }

    #[test]
    fn only_stalls_shortly_before_a_failure_count() {
        let now = Instant::now() + Duration::from_secs(1000);
        let ago = |seconds| now - Duration::from_secs(seconds);
        let ms = Duration::from_millis;
        let stalls = Stalls(Arc::new(Mutex::new(vec![
            (ago(900), ms(900)),
            (ago(200), ms(200)),
            (ago(10), ms(300)),
            (now + Duration::from_secs(5), ms(800)),
        ])));
        assert_eq!(stalls.longest_before(now), ms(300));
        assert_eq!(stalls.longest_before(ago(400)), Duration::ZERO);
    }
}
