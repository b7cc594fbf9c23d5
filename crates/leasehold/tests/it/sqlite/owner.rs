//! Root uses a file of another user: that user can go on with it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use leasehold::{Lease, Locks};

use super::common::File;
use crate::support::times::until;

/// "nobody" on most systems.
const USER: u32 = 65_534;

const URL: &str = "LEASEHOLD_TEST_FILE_OF_USER";

/// Whoever waits for longer was not woken: no lock ends by itself in that time.
const SOON: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(200);

async fn hold(locks: &Locks, name: &str) -> Lease {
    let request = locks.lock(name).ttl(TTL).wait(SOON);
    request.acquire().await.unwrap()
}

async fn until_waited_for(locks: &Locks, name: &str) {
    until("one waits", async || {
        !locks.inspect(name).await.unwrap().waiters.is_empty()
    })
    .await;
}

/// What a process does that the next test starts.
#[tokio::test]
async fn as_a_process_of_the_owner() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let locks = Locks::connect(url).await.unwrap();
    let own = hold(&locks, "of the user").await;
    let roots = hold(&locks, "of root").await;
    roots.release().await.unwrap();
    let store = locks.store().unwrap();
    let read = store.read("record").await.unwrap();
    assert_eq!(read.unwrap().value, b"value");
    store
        .write_fenced("of the user", "value", &own)
        .await
        .unwrap();
    until_waited_for(&locks, "of the user").await;
    own.release().await.unwrap();
}

/// As the user whose file it is; by a path that needs no rights to the folders that the program is in.
fn start_process_of(user: Option<u32>, url: &str) -> Child {
    let mut process = Command::new("/proc/self/exe");
    process
        .args(["--exact", "sqlite::owner::as_a_process_of_the_owner"])
        .current_dir("/")
        .env(URL, url);
    if let Some(user) = user {
        process.uid(user).gid(user);
    }
    process.spawn().unwrap()
}

fn all_within(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => [vec![path.clone()], all_within(&path)].concat(),
            false => vec![path],
        })
        .collect()
}

/// Who is not root, or may give nothing away, tests it among processes of one user.
#[tokio::test]
async fn user_waits_and_is_woken_after_root_has_waited() {
    let file = File::new();
    let folder = file.path.parent().unwrap();
    fs::write(&file.path, "").unwrap();
    fs::set_permissions(&file.path, fs::Permissions::from_mode(0o600)).unwrap();
    let is_given = [folder, &file.path].map(|path| chown(path, Some(USER), Some(USER)).is_ok());
    let user = (is_given == [true; 2]).then_some(USER);
    let locks = file.open_patiently().await;
    let roots = hold(&locks, "of root").await;
    let store = locks.store().unwrap();
    store.write_fenced("record", "value", &roots).await.unwrap();
    // Only who must wait for others takes turns.
    let intruder = file.sql();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waits = tokio::spawn(locks.lock("of root").wait_forever().acquire());
    let turn = PathBuf::from(format!("{}-turn", file.path.display()));
    until("one waits for its turn", async || turn.exists()).await;
    intruder.execute_batch("COMMIT").unwrap();
    drop(intruder);
    until_waited_for(&locks, "of root").await;
    waits.abort();
    until("nobody waits", async || {
        locks.inspect("of root").await.unwrap().waiters.is_empty()
    })
    .await;
    let database = fs::metadata(&file.path).unwrap();
    let made = all_within(folder);
    let is_there = |ending: &str| {
        let path = PathBuf::from(format!("{}{ending}", file.path.display()));
        made.iter()
            .any(|made| *made == path || made.parent() == Some(&path))
    };
    for ending in ["-turn", "-pipes", "-records", "-records-wal"] {
        assert!(is_there(ending), "{ending} is not there: {made:?}");
    }
    for path in &made {
        let metadata = fs::metadata(path).unwrap();
        let owner = (metadata.uid(), metadata.gid());
        assert_eq!(owner, (database.uid(), database.gid()), "{path:?}");
    }
    let url = format!("sqlite:{}", file.path.display());
    let mut process = start_process_of(user, &url);
    until("the user holds a lock", async || {
        !locks
            .inspect("of the user")
            .await
            .unwrap()
            .holders
            .is_empty()
    })
    .await;
    let waits = tokio::spawn({
        let locks = locks.clone();
        async move { hold(&locks, "of the user").await }
    });
    until_waited_for(&locks, "of root").await;
    roots.release().await.unwrap();
    let lease = waits.await.expect("root is not woken");
    lease.release().await.unwrap();
    let ended = tokio::task::spawn_blocking(move || process.wait()).await;
    assert!(ended.unwrap().unwrap().success(), "the user is not woken");
}
