//! `list --deadlocks`: who waits for whom in a circle.

use super::engines::on_each;
use super::sandbox::until;

#[test]
fn two_locks_in_different_orders_are_a_deadlock() {
    on_each(|on| {
        let list = |args: &[&str]| {
            let args = [&["list", "--deadlocks"], args].concat();
            let done = on.sandbox.on(&on.url, &args).output().unwrap();
            assert_eq!(done.status.code(), Some(0));
            String::from_utf8(done.stdout).unwrap()
        };
        assert_eq!(
            (list(&[]), list(&["--json"])),
            ("no deadlocks\n".into(), String::new())
        );
        let start = |first: &str, second: &str| {
            let script = format!(
                "echo > {first}.in; while ! test -e {second}.in; do sleep 0.01; done; \
                 \"$BIN\" run {second} --wait forever -- true"
            );
            let owner = format!("wants-{second}");
            let args = ["run", first, "--owner", &owner, "--", "sh", "-c", &script];
            let mut command = on.sandbox.on(&on.url, &args);
            command.env("BIN", env!("CARGO_BIN_EXE_leasehold"));
            on.sandbox.start_command(command)
        };
        let _both = (start("a", "b"), start("b", "a"));
        until(&format!("it is found on {}", on.url), || {
            list(&["--json"]).contains("deadlock")
        });
        let told = list(&[]);
        for line in [
            "wants-a on ",
            "waits for \"a\", held by wants-b on ",
            "waits for \"b\", held by wants-a on ",
        ] {
            assert!(told.contains(line), "{told}");
        }
        let json: serde_json::Value = serde_json::from_str(&list(&["--json"])).unwrap();
        assert_eq!(json["deadlock"].as_array().unwrap().len(), 2);
        assert_eq!(list(&["a", "--json"]), "", "one lock alone makes no circle");
    });
}
