//! What is asked of every error that a user sees.

use leasehold::{Error, ErrorKind, Locks};

/// Must not be shown anywhere.
pub const PASSWORD: &str = "s3cret-word";

/// What a user sees of an error must be enough.
#[track_caller]
pub fn check(error: &Error, kind: ErrorKind, says: &str, where_it_is: &str) {
    let shown = error.to_string();
    assert_eq!(error.kind(), kind, "{shown}");
    assert!(shown.contains(says), "{shown:?} does not say {says:?}");
    assert!(shown.contains(where_it_is), "{shown}");
    assert!(error.advice().is_some(), "{shown}");
    let debug = format!("{error:?}");
    assert!(!debug.contains(PASSWORD), "{debug}");
    assert!(!shown.contains(PASSWORD), "{shown}");
}

pub async fn refused(url: &str) -> Error {
    Locks::connect(url).await.expect_err(url)
}
