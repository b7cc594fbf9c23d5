//! What the doctor finds in a file.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use leasehold::Ttl;
use leasehold::engine::doctor::Verdict;

use super::common::File;
use crate::support::findings::wrong;

#[tokio::test]
async fn a_file_that_anyone_can_write_is_found_until_it_is_mended() {
    let file = File::new();
    let locks = file.open().await;
    assert_eq!(wrong(&file.url()).await, [""; 0]);
    let set = |mode| set_permissions(&file.path, Permissions::from_mode(mode)).unwrap();
    set(0o666);
    assert_eq!(wrong(&file.url()).await, ["permissions"]);
    set(0o600);
    let report = locks.doctor(Ttl::DEFAULT).await;
    assert!(!report.warns(), "{:?}", report.findings);
    assert_eq!(report.verdict, Verdict::Correctness);
}
