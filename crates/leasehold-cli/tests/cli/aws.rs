//! The command line on DynamoDB and S3: a claim from beginning to end, and the exit code of each kind of bad input.

use serde_json::Value;

use super::sandbox::{Done, Sandbox};
use super::support::aws_server::AwsServer;
use super::support::http_faults::{Asked, Fate, HttpFaults};

const RUN: &[&str] = &["run", "x", "--wait", "0", "--", "true"];

/// Runs `leasehold` on this engine.
fn on(sandbox: &Sandbox, url: &str, args: &[&str]) -> Done {
    sandbox.run(&[&["--url", url], args].concat())
}

/// It failed with this code, says this and what to do, and shows no secret.
#[track_caller]
fn fails(done: &Done, code: i32, says: &str) {
    assert_eq!(done.code, code, "{}", done.stderr);
    assert!(done.stderr.contains(says), "{}", done.stderr);
    assert!(done.stderr.contains(';'), "no advice: {}", done.stderr);
    assert!(!done.stderr.contains("s3cret-word"), "{}", done.stderr);
    assert_eq!(done.stdout, "");
}

fn server_with_bucket() -> AwsServer {
    let server = AwsServer::ministack();
    server.make_bucket();
    server
}

#[test]
fn freeze_that_would_not_end_in_time_is_refused() {
    let (sandbox, server) = (Sandbox::new(), server_with_bucket());
    for (options, until, code) in [
        ("", "forever", 0),
        ("", "3days", 64),
        ("&max_clock_skew=5s", "3days", 0),
    ] {
        for url in [server.dynamodb(options), server.s3(options)] {
            let name = format!("deploy{code}{until}");
            let args = ["acquire", &name, "--until", until, "--reason", "holidays"];
            let done = on(&sandbox, &url, &args);
            assert_eq!(done.code, code, "{url}: {}", done.stderr);
            let says_why = done.stderr.contains("this engine has no clock");
            assert_eq!(says_why, code == 64, "{}", done.stderr);
        }
    }
}

#[test]
fn a_claim_from_acquire_to_release() {
    let (sandbox, server) = (Sandbox::new(), server_with_bucket());
    for url in [server.dynamodb(""), server.s3("")] {
        let leasehold = |args: &[&str]| on(&sandbox, &url, args);
        let json = |args: &[&str]| -> Value {
            let done = leasehold(args);
            assert_eq!((done.code, done.stderr.as_str()), (0, ""));
            serde_json::from_str(&done.stdout).unwrap()
        };
        let first = json(&["acquire", "a/1", "--owner", "me", "--json"]);
        let claim = first["claim"].as_str().unwrap();
        assert_eq!(leasehold(&["acquire", "a/1", "--wait", "0"]).code, 75);
        let listed = json(&["list", "a/", "--json"]);
        assert_eq!(listed["holders"][0]["token"], first["token"]);
        let renewed = json(&["renew", "a/1", "--claim", claim, "--json"]);
        assert_eq!(renewed["token"], first["token"]);
        let released = leasehold(&["release", "a/1", "--claim", claim]);
        assert_eq!((released.code, released.stdout.as_str()), (0, "released\n"));
        assert_eq!(leasehold(&["renew", "a/1", "--claim", claim]).code, 76);
        let second = json(&["acquire", "a/1", "--json"]);
        assert!(second["token"].as_u64() > first["token"].as_u64());
        assert_eq!(leasehold(&["break", "a/1"]).stdout, "broken\n");
        // What is kept of a claim is not the claim.
        let items = server.dynamo("Scan", r#"{"TableName":"locks"}"#);
        assert!(!items.contains(claim), "{items}");
    }
}

#[test]
fn what_is_missing_or_another_programs_is_told_by_the_exit_code() {
    let (sandbox, server) = (Sandbox::new(), server_with_bucket());
    let port = server.port();
    let table = |name: &str, more: &str| AwsServer::url_at("dynamodb", name, port, more);
    let bucket = |name: &str| AwsServer::url_at("s3", name, port, "");

    let done = on(&sandbox, &table("missing", "&dialect=java"), RUN);
    fails(&done, 64, "no such table");
    fails(&on(&sandbox, &bucket("missing"), RUN), 64, "no such bucket");

    let made = server.dynamo(
        "CreateTable",
        r#"{"TableName":"numbers","BillingMode":"PAY_PER_REQUEST","AttributeDefinitions":[{"AttributeName":"id","AttributeType":"N"}],"KeySchema":[{"AttributeName":"id","KeyType":"HASH"}]}"#,
    );
    assert!(made.contains("TableDescription"), "{made}");
    fails(&on(&sandbox, &table("numbers", ""), RUN), 78, "type S");

    // The first one makes the table.
    let (locks, objects) = (server.dynamodb(""), server.s3(""));
    for url in [&locks, &objects] {
        assert_eq!(on(&sandbox, url, &["run", "y", "--", "true"]).code, 0);
    }
    for size in [1, 400_000 - 100] {
        let theirs = "t".repeat(size);
        let item = format!(
            "{{\"TableName\":\"locks\",\"Item\":{{\"key\":{{\"S\":\"lock:x\"}},\"v\":{{\"S\":\"{theirs}\"}}}}}}"
        );
        let said = server.dynamo("PutItem", &item);
        assert!(!said.contains("Exception"), "{said}");
        fails(&on(&sandbox, &locks, RUN), 78, "not a lock");
        server.put_object("app/locks/x", &theirs);
        fails(&on(&sandbox, &objects, RUN), 78, "not a lock");
    }
}

/// What the servers of the tests do not refuse, a proxy refuses in AWS's words.
#[test]
fn what_aws_refuses_is_told_by_the_exit_code() {
    let (sandbox, server) = (Sandbox::new(), server_with_bucket());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let faults = runtime.block_on(HttpFaults::before(server.port()));
    let url = AwsServer::url_at("dynamodb", "locks", faults.port, "");
    assert_eq!(on(&sandbox, &url, &["run", "y", "--", "true"]).code, 0);
    let show: &[&str] = &["show", "x"];
    let list: &[&str] = &["list"];
    for (call, code, message, args, exit, says) in [
        (
            "putitem",
            "AccessDeniedException",
            "no",
            RUN,
            77,
            "allow dynamodb:PutItem",
        ),
        (
            "getitem",
            "AccessDeniedException",
            "no",
            show,
            77,
            "allow dynamodb:GetItem",
        ),
        (
            "scan",
            "AccessDeniedException",
            "no",
            list,
            77,
            "allow dynamodb:Scan",
        ),
        (
            "putitem",
            "ExpiredTokenException",
            "no",
            RUN,
            77,
            "have expired",
        ),
        (
            "describetable",
            "ExpiredTokenException",
            "no",
            RUN,
            77,
            "have expired",
        ),
        (
            "describetable",
            "UnrecognizedClientException",
            "no",
            RUN,
            77,
            "credentials",
        ),
        (
            "describetable",
            "InvalidSignatureException",
            "Credential should be scoped to a valid region, not 'us-east-1'.",
            RUN,
            64,
            "region=",
        ),
        (
            "putitem",
            "ValidationException",
            "Item size has exceeded the maximum allowed size",
            RUN,
            64,
            "400 KB",
        ),
        ("putitem", "ThrottlingException", "no", show, 0, ""),
    ] {
        let body = format!("{{\"__type\":\"com.amazon#{code}\",\"message\":\"{message}\"}}");
        faults.set(move |asked: &Asked| match asked.call() == call {
            true => Fate::IsTold(400, body.clone()),
            false => Fate::Passes,
        });
        let done = on(&sandbox, &url, args);
        match exit {
            0 => assert_eq!(done.code, 0, "{}", done.stderr),
            exit => fails(&done, exit, says),
        }
    }
    // A table that may not be made.
    faults.set(|asked: &Asked| match asked.call() == "createtable" {
        true => Fate::IsTold(400, r#"{"__type":"x#AccessDeniedException"}"#.to_owned()),
        false => Fate::Passes,
    });
    let others = AwsServer::url_at("dynamodb", "others", faults.port, "");
    fails(&on(&sandbox, &others, RUN), 77, "leasehold schema dynamodb");

    let url = AwsServer::url_at("s3", "locks-of-tests/app", faults.port, "");
    for (method, status, code, more, args, exit, says) in [
        (
            "PUT",
            403,
            "AccessDenied",
            "",
            RUN,
            77,
            "allow s3:PutObject",
        ),
        ("GET", 403, "AccessDenied", "", show, 77, "s3:ListBucket"),
        ("PUT", 400, "ExpiredToken", "", RUN, 77, "have expired"),
        ("PUT", 403, "InvalidAccessKeyId", "", RUN, 77, "credentials"),
        (
            "PUT",
            301,
            "PermanentRedirect",
            "",
            RUN,
            64,
            "another region",
        ),
        (
            "PUT",
            400,
            "AuthorizationHeaderMalformed",
            "<Region>eu-north-1</Region>",
            RUN,
            64,
            "region=eu-north-1",
        ),
        (
            "PUT",
            501,
            "NotImplemented",
            "",
            RUN,
            78,
            "conditional writes",
        ),
        ("PUT", 503, "SlowDown", "", RUN, 69, "too many requests"),
    ] {
        let body = format!("<Error><Code>{code}</Code><Message>no</Message>{more}</Error>");
        faults.set(move |asked: &Asked| match asked.method == method {
            true => Fate::IsTold(status, body.clone()),
            false => Fate::Passes,
        });
        fails(&on(&sandbox, &url, args), exit, says);
    }
    // A store that ignores conditions.
    faults.set(|asked: &Asked| match asked.method == "PUT" {
        true => Fate::IsTold(200, String::new()),
        false => Fate::Passes,
    });
    assert_eq!(on(&sandbox, &url, RUN).code, 78);
}
