//! What databases that are reached over TLS must say when it cannot be.

use leasehold::ErrorKind;

use super::bad_input::{check, refused};

/// `secured` is the URL, at a host and with options, of a server that admits only who encrypts; `plain` that of one that cannot. In the
/// options, `@` is the folder of the certificates.
pub async fn are_said(
    secured: impl Fn(&str, &str) -> String,
    plain: impl Fn(&str, &str) -> String,
) {
    let here = "127.0.0.1";
    for options in [
        "sslmode=verify-full",
        "sslmode=verify-full&sslrootcert=@other-ca.pem",
        "sslmode=require&sslrootcert=@other-ca.pem",
    ] {
        is_refused(
            &secured(here, options),
            ErrorKind::Denied,
            "is not trusted",
            "sslrootcert=",
        )
        .await;
    }
    let elsewhere = secured("localhost", "sslmode=verify-full&sslrootcert=@ca.pem");
    is_refused(
        &elsewhere,
        ErrorKind::Denied,
        "is for another host",
        "a name",
    )
    .await;
    let open = secured(here, "sslmode=disable");
    is_refused(
        &open,
        ErrorKind::Denied,
        "refuses this user",
        "sslmode=require",
    )
    .await;

    for (file, says) in [
        ("@nowhere.pem", "cannot be read"),
        ("@server-key.pem", "no certificates"),
    ] {
        let url = secured(here, &format!("sslmode=verify-full&sslrootcert={file}"));
        is_refused(&url, ErrorKind::InvalidConfig, says, "").await;
    }
    for options in ["sslmode=require", "sslmode=verify-full&sslrootcert=@ca.pem"] {
        is_refused(
            &plain(here, options),
            ErrorKind::EngineUnfit,
            "does not encrypt",
            "sslmode=disable",
        )
        .await;
    }
}

async fn is_refused(url: &str, kind: ErrorKind, says: &str, advises: &str) {
    let error = refused(url).await;
    check(&error, kind, says, "@");
    assert!(error.advice().unwrap().contains(advises), "{error}");
}
