//! `ask`, and `run --on-revoke`.

use super::engines::on_each;
use super::sandbox::until;

#[test]
fn a_command_is_told_and_may_end_in_good_order() {
    on_each(|on| {
        let script =
            "trap 'echo told > told; exit 5' USR1; echo > in; while :; do sleep 0.02; done";
        let args = [
            "run",
            "a",
            "--ttl",
            "3s",
            "--on-revoke",
            "USR1",
            "--",
            "sh",
            "-c",
            script,
        ];
        let running = on.sandbox.start_command(on.sandbox.on(&on.url, &args));
        let ask = |json: &str| {
            let args = ["ask", "a", "--reason", "a fix", json];
            let args: Vec<_> = args.into_iter().filter(|arg| !arg.is_empty()).collect();
            on.sandbox.on(&on.url, &args).output().unwrap()
        };
        if !on.store {
            let done = running.wait();
            assert_eq!(done.code, 64, "{}", done.stderr);
            assert!(done.stderr.contains("guarded records"), "{}", done.stderr);
            assert_eq!(ask("").status.code(), Some(64));
            return;
        }
        until("it is in", || on.sandbox.has("in"));
        let asked = String::from_utf8(ask("").stdout).unwrap();
        assert!(asked.starts_with("asked sh on "), "{asked}");
        let done = running.wait();
        assert_eq!(done.code, 5, "{}", done.stderr);
        assert!(on.sandbox.has("told"));
        assert!(done.stderr.contains(": a fix"), "{}", done.stderr);
        assert_eq!(ask("").stdout, b"not held\n");
        let json: serde_json::Value = serde_json::from_slice(&ask("--json").stdout).unwrap();
        assert_eq!(json, serde_json::json!({"name": "a", "asked": []}));
    });
}
