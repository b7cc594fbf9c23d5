//! `ids`: never one twice.

use std::collections::HashSet;

use nix::sys::signal::Signal;

use super::engines::on_each;

#[test]
fn killed_processes_print_no_id_twice() {
    on_each(|on| {
        let start = || {
            on.sandbox
                .start_command(on.sandbox.on(&on.url, &["ids", "orders", "--count", "200"]))
        };
        if !on.store {
            let done = start().wait();
            assert_eq!(done.code, 64, "{}", done.stderr);
            return;
        }
        let mut seen = HashSet::new();
        for _ in 0..5 {
            let all: Vec<_> = (0..4).map(|_| start()).collect();
            let killed = start();
            std::thread::sleep(std::time::Duration::from_millis(fastrand::u64(0..30)));
            killed.signal(Signal::SIGKILL);
            drop(killed);
            for one in all {
                let done = one.wait();
                assert_eq!(
                    (done.code, done.stdout.lines().count()),
                    (0, 200),
                    "{}",
                    done.stderr
                );
                for id in done.stdout.lines() {
                    // Not only the id: its number alone is unique.
                    assert!(id.len() == 32 && seen.insert(id[..12].to_owned()), "{id}");
                }
            }
        }
        let json = on.sandbox.on(&on.url, &["ids", "--json"]).output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(
            (&json["pool"], json["id"].as_str().unwrap().len()),
            (&"ids".into(), 32)
        );
    });
}
