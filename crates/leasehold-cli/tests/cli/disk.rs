//! Disks that are full or read-only, and the default file: each in a mount namespace or home of its own.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

/// Runs a script on a small disk of its own at `$DISK`, with `$L` for the command line on a file there.
fn on_a_small_disk(script: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().display();
    let script = format!(
        "set -e; DISK={disk}; mount -t tmpfs -o size=128k disk $DISK; cd /
         L='{LEASEHOLD} --url sqlite:{disk}/locks.db'
         try() {{ \"$@\" 2>&1 || echo \"exit $?\"; }}
         {script}"
    );
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", &script])
        .output()
        .expect("unshare is missing: ./test.sh installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    let said = on_a_small_disk(
        "$L acquire held --ttl 60s > /dev/null
         dd if=/dev/zero of=$DISK/fill bs=1k count=200 2> /dev/null || true
         try $L run other --wait 0 -- echo ran
         rm $DISK/fill
         try $L run held --wait 0 -- echo ran
         try $L run other --wait 0 -- echo ran afterwards",
    );
    let lines: Vec<_> = said.lines().collect();
    assert!(
        lines[0].contains("the disk is full; free some space"),
        "{said}"
    );
    assert_eq!(lines[1], "exit 69", "{said}");
    assert!(lines[2].contains("held by"), "{said}");
    assert_eq!(lines[3..], ["exit 75", "ran afterwards"], "{said}");
}

#[test]
fn a_read_only_disk_is_denied() {
    let said = on_a_small_disk(
        "$L run x -- true
         mount -o remount,ro $DISK
         try $L run x -- echo ran",
    );
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].contains("cannot be written to"), "{said}");
    assert_eq!(lines[1..], ["exit 77"], "{said}");
}

#[test]
fn default_file_is_private_in_the_state_folder() {
    let home = tempfile::tempdir().unwrap();
    let run = |set: &str, value: &std::path::Path| {
        let mut command = Command::new(LEASEHOLD);
        command
            .args(["run", "x", "--", "true"])
            .env_remove("LEASEHOLD_URL");
        command.env_remove("XDG_STATE_HOME").env(set, value);
        assert!(command.status().unwrap().success());
    };
    run("XDG_STATE_HOME", &home.path().join("state"));
    run("HOME", home.path());
    for folder in ["state/leasehold", ".local/state/leasehold"] {
        let folder = home.path().join(folder);
        let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join("locks.db")), 0o600);
    }
}
