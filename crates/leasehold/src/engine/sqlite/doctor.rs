//! What the place of a file means for locks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;

use super::old_sqlite;
use crate::engine::doctor::Finding;

/// A few transactions may need so much.
const SPARE: u64 = 16 * 1024 * 1024;

pub(super) fn findings(file: &Path) -> Vec<Finding> {
    let mode = fs::metadata(file).map(|file| file.permissions().mode());
    vec![
        old_sqlite(rusqlite::version_number()),
        file_system(file),
        Finding::of("permissions", mode.ok(), permissions),
        Finding::of("free_space", space_left(file), free_space),
    ]
}

#[allow(clippy::unnecessary_cast)] // the numbers are of other types on other systems
fn space_left(file: &Path) -> Option<u64> {
    let found = statvfs(file).ok()?;
    Some(found.blocks_available() as u64 * found.fragment_size() as u64)
}

#[cfg(target_os = "linux")]
fn file_system(file: &Path) -> Finding {
    let found = nix::sys::statfs::statfs(file).ok();
    // The number is of another type on some machines.
    let number = found.map(|found| found.filesystem_type().0 as u64 & 0xffff_ffff);
    Finding::of("file_system", number, judge_file_system)
}

#[cfg(not(target_os = "linux"))]
fn file_system(_file: &Path) -> Finding {
    Finding::unknown("file_system", "only Linux tells")
}

/// By the numbers of statfs(2).
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn judge_file_system(number: u64) -> Finding {
    let name = match number {
        0x6969 => "NFS",
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => "SMB",
        0x0102_1997 => "9p",
        0x5346_414f => "AFS",
        0x00c3_6400 => "Ceph",
        0x6573_5546 => {
            return Finding::unknown(
                "file_system",
                "FUSE: whether its locks hold depends on what is behind it",
            );
        }
        0x0102_1994 => {
            return Finding::good(
                "file_system",
                "tmpfs, which ends with the machine's uptime, as locks do",
            );
        }
        0x794c_7630 => {
            return Finding::good("file_system", "overlay: other containers have another file");
        }
        _ => return Finding::good("file_system", "a local one"),
    };
    Finding::unfit("file_system", name)
        .means("on a network file system SQLite's locks and its shared memory do not reach other machines: two can hold a lock at once")
        .fix("put the file on a local disk; for locks among machines, use another engine or `leasehold serve`")
}

fn permissions(mode: u32) -> Finding {
    let seen = format!("mode {:o}", mode & 0o777);
    match mode & 0o002 {
        0 => Finding::good("permissions", seen),
        _ => Finding::warning("permissions", seen)
            .means("every user of the machine can take, break and forge locks")
            .fix("chmod o-w the file and those beside it that end in -wal and -shm"),
    }
}

fn free_space(bytes: u64) -> Finding {
    let seen = format!("{} MiB", bytes / 1024 / 1024);
    match bytes >= SPARE {
        true => Finding::good("free_space", seen),
        false => Finding::warning("free_space", seen)
            .means("once the disk is full, locks can be neither acquired nor renewed")
            .fix("free some space, or put the file on another disk"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    #[test]
    fn network_file_systems_are_unfit() {
        for (number, weight) in [
            (0xef53, Weight::Good),
            (0x6969, Weight::Unfit),
            (0xff53_4d42, Weight::Unfit),
            (0x0102_1997, Weight::Unfit),
            (0x0102_1994, Weight::Good),
            (0x6573_5546, Weight::Unknown),
        ] {
            assert_eq!(judge_file_system(number).weight, weight, "{number:x}");
        }
    }

    #[test]
    fn little_space_is_too_little() {
        assert_eq!(free_space(1 << 30).weight, Weight::Good);
        assert_eq!(free_space(1 << 20).weight, Weight::Warning);
    }
}
