//! Bad input: each kind of it is a clear error, with the right kind and advice.

use leasehold::{ErrorKind, Locks};

use crate::support::aws_server::AwsServer;
use crate::support::bad_input::{check, refused};
use crate::support::http_faults::{Asked, Fate, HttpFaults};

#[tokio::test]
async fn bad_urls_are_refused_with_advice() {
    for (url, says) in [
        ("s3:", "names one bucket"),
        ("s3://aaa,bbb/x", "names one bucket"),
        ("s3://a", "not the name of a bucket"),
        ("s3://Bucket", "not the name of a bucket"),
        ("s3://bucket:9000/x", "not the name of a bucket"),
        ("s3://bucket/a/../b", "prefix"),
        ("s3://bucket/a%20b", "prefix"),
        ("s3://key@bucket", "go together"),
        ("s3://bucket?region=Europe", "not a region"),
        ("s3://bucket?endpoint=h:1", "cannot be used"),
        ("s3://bucket?timeout=0s", "out of range"),
        ("s3://bucket?dialect=java", "no option"),
    ] {
        let error = refused(url).await;
        check(&error, ErrorKind::InvalidConfig, says, "");
    }
}

#[tokio::test]
async fn missing_bucket_is_told() {
    let server = AwsServer::ministack();
    let error = refused(&server.s3("")).await;
    check(
        &error,
        ErrorKind::InvalidConfig,
        "no such bucket",
        "s3://AKIATEST:***@locks-of-tests/app",
    );
}

#[tokio::test]
async fn foreign_object_is_refused_and_left_as_it_is() {
    let server = AwsServer::ministack();
    server.make_bucket();
    let locks = Locks::connect(server.s3("")).await.unwrap();
    server.put_object("app/locks/x", "mine");
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    check(&error, ErrorKind::EngineUnfit, "not a lock", "s3://");
    assert_eq!(locks.list("").await.unwrap(), []);
    server.put_object("app/locks/y", "{\"format\":2}");
    let error = locks.lock("y").try_acquire().await.unwrap_err();
    check(&error, ErrorKind::EngineUnfit, "layout 2", "s3://");
}

/// What the server of the tests does not do, a proxy does in its place.
#[tokio::test]
async fn store_that_ignores_conditions_is_found_out() {
    let server = AwsServer::ministack();
    server.make_bucket();
    let faults = HttpFaults::before(server.port()).await;
    let url = AwsServer::url_at("s3", "locks-of-tests/app", faults.port, "");
    let always = |header: &'static str| {
        move |asked: &Asked| match asked.method == "PUT" && asked.head.contains(header) {
            true => Fate::IsTold(200, String::new()),
            false => Fate::Passes,
        }
    };
    Locks::connect(&url).await.unwrap();
    for header in ["if-none-match", "if-match"] {
        faults.set(always(header));
        let error = refused(&url).await;
        check(&error, ErrorKind::EngineUnfit, "", "s3://");
    }
    let told = |status: u16, code: &str, more: &str| {
        let body = format!("<Error><Code>{code}</Code><Message>no</Message>{more}</Error>");
        move |_: &Asked| Fate::IsTold(status, body.clone())
    };
    for (status, code, more, kind, says) in [
        (
            501,
            "NotImplemented",
            "",
            ErrorKind::EngineUnfit,
            "no conditional writes",
        ),
        (
            403,
            "AccessDenied",
            "",
            ErrorKind::Denied,
            "s3:PutObject is not allowed",
        ),
        (400, "ExpiredToken", "", ErrorKind::Denied, "have expired"),
        (
            403,
            "SignatureDoesNotMatch",
            "",
            ErrorKind::Denied,
            "does not accept the credentials",
        ),
        (
            503,
            "SlowDown",
            "",
            ErrorKind::Unreachable,
            "too many requests",
        ),
        (
            301,
            "PermanentRedirect",
            "",
            ErrorKind::InvalidConfig,
            "another region",
        ),
        (
            400,
            "AuthorizationHeaderMalformed",
            "<Region>eu-north-1</Region>",
            ErrorKind::InvalidConfig,
            "region=eu-north-1",
        ),
    ] {
        faults.set(told(status, code, more));
        let error = refused(&url).await;
        check(&error, kind, says, "s3://AKIATEST:***@locks-of-tests/app");
    }
}
