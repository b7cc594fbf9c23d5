//! Bad input: each kind of it is a clear error, with the right kind and advice.

use leasehold::{ErrorKind, Locks};

use crate::support::aws_server::AwsServer;
use crate::support::bad_input::{check, refused};
use crate::support::http_faults::{Asked, Fate, HttpFaults};
use crate::support::times::secs;

#[tokio::test]
async fn bad_urls_are_refused_with_advice() {
    for (url, says) in [
        ("dynamodb:", "names one table"),
        ("dynamodb://", "names one table"),
        ("dynamodb://a,b", "names one table"),
        ("dynamodb://locks/path", "names one table"),
        ("dynamodb://x", "not the name of a table"),
        ("dynamodb://l%20cks", "not the name of a table"),
        ("dynamodb://key@locks", "go together"),
        ("dynamodb://locks?dialect=cobol", "not known"),
        ("dynamodb://locks?sort_key=x", "sort key"),
        ("dynamodb://locks?region=Europe", "not a region"),
        ("dynamodb://locks?endpoint=h:1", "cannot be used"),
        ("dynamodb://locks?poll=0s", "out of range"),
        ("dynamodb://locks?poll=1s&waiter_ttl=1s", "too short"),
        ("dynamodb://locks?colour=red", "no option"),
    ] {
        let error = refused(url).await;
        check(&error, ErrorKind::InvalidConfig, says, "");
    }
}

#[tokio::test]
async fn missing_table_of_others_is_not_made() {
    let server = AwsServer::ministack();
    let error = refused(&server.dynamodb("&dialect=java")).await;
    check(
        &error,
        ErrorKind::InvalidConfig,
        "no such table",
        "dynamodb://AKIATEST:***@locks",
    );
}

#[tokio::test]
async fn wrong_key_schema_is_refused() {
    let server = AwsServer::ministack();
    let make = |name: &str, attributes: &str, keys: &str| {
        let made = server.dynamo(
            "CreateTable",
            &format!("{{\"TableName\":\"{name}\",\"BillingMode\":\"PAY_PER_REQUEST\",\"AttributeDefinitions\":[{attributes}],\"KeySchema\":[{keys}]}}"),
        );
        assert!(made.contains("TableDescription"), "{made}");
    };
    let attribute = |name: &str, kind: &str| {
        format!("{{\"AttributeName\":\"{name}\",\"AttributeType\":\"{kind}\"}}")
    };
    let key =
        |name: &str, kind: &str| format!("{{\"AttributeName\":\"{name}\",\"KeyType\":\"{kind}\"}}");
    make("numbers", &attribute("id", "N"), &key("id", "HASH"));
    let both = [attribute("id", "S"), attribute("at", "S")].join(",");
    make(
        "sorted",
        &both,
        &[key("id", "HASH"), key("at", "RANGE")].join(","),
    );
    make("plain", &attribute("id", "S"), &key("id", "HASH"));
    for (table, options, says) in [
        ("numbers", "", "not of type S"),
        ("sorted", "", "sort key"),
        ("sorted", "&dialect=java", "sort key"),
        ("plain", "&dialect=java&sort_key=x", "no sort key"),
    ] {
        let url = AwsServer::url_at("dynamodb", table, server.port(), options);
        let error = refused(&url).await;
        check(&error, ErrorKind::EngineUnfit, says, table);
    }
    // The name of the key does not matter.
    let url = AwsServer::url_at("dynamodb", "plain", server.port(), "");
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn foreign_item_is_refused_and_left_as_it_is() {
    let server = AwsServer::ministack();
    let locks = Locks::connect(server.dynamodb("")).await.unwrap();
    let foreign = r#"{"TableName":"locks","Item":{"key":{"S":"lock:x"},"mine":{"BOOL":true}}}"#;
    server.dynamo("PutItem", foreign);
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    check(&error, ErrorKind::EngineUnfit, "not a lock", "locks");
    let there = server.dynamo(
        "GetItem",
        r#"{"TableName":"locks","Key":{"key":{"S":"lock:x"}}}"#,
    );
    assert!(there.contains("mine"), "{there}");
    assert_eq!(locks.list("").await.unwrap(), []);
    // One of a later version too.
    let later =
        r#"{"TableName":"locks","Item":{"key":{"S":"lock:y"},"document":{"S":"{\"format\":2}"}}}"#;
    server.dynamo("PutItem", later);
    let error = locks.lock("y").try_acquire().await.unwrap_err();
    check(&error, ErrorKind::EngineUnfit, "layout 2", "locks");
}

/// What the servers of the tests do not refuse, a proxy refuses in AWS's words.
#[tokio::test]
async fn what_aws_refuses_is_told_with_what_to_do() {
    let server = AwsServer::ministack();
    let faults = HttpFaults::before(server.port()).await;
    let url = AwsServer::url_at("dynamodb", "locks", faults.port, "");
    let locks = Locks::connect(&url).await.unwrap();
    let deny = |call: &'static str, status: u16, code: &'static str| {
        let body = format!("{{\"__type\":\"com.amazon#{code}\",\"message\":\"no\"}}");
        move |asked: &Asked| match asked.call() == call {
            true => Fate::IsTold(status, body.clone()),
            false => Fate::Passes,
        }
    };
    for (call, status, code, kind, says) in [
        (
            "putitem",
            400,
            "AccessDeniedException",
            ErrorKind::Denied,
            "dynamodb:PutItem is not allowed",
        ),
        (
            "putitem",
            400,
            "ExpiredTokenException",
            ErrorKind::Denied,
            "have expired",
        ),
        (
            "putitem",
            400,
            "UnrecognizedClientException",
            ErrorKind::Denied,
            "does not accept the credentials",
        ),
        (
            "putitem",
            400,
            "ResourceNotFoundException",
            ErrorKind::InvalidConfig,
            "no such table",
        ),
        (
            "putitem",
            400,
            "RequestTimeTooSkewed",
            ErrorKind::Denied,
            "refuses the time",
        ),
        (
            "putitem",
            400,
            "ThrottlingException",
            ErrorKind::Unreachable,
            "too many requests",
        ),
        (
            "putitem",
            400,
            "ReplicatedWriteConflictException",
            ErrorKind::Unreachable,
            "too many requests",
        ),
    ] {
        faults.set(deny(call, status, code));
        let error = locks.lock("x").try_acquire().await.unwrap_err();
        check(&error, kind, says, "dynamodb://AKIATEST:***@locks");
    }
    faults.set(deny("getitem", 400, "AccessDeniedException"));
    let error = locks.inspect("x").await.unwrap_err();
    check(&error, ErrorKind::Denied, "dynamodb:GetItem", "locks");
    faults.set(deny("scan", 400, "AccessDeniedException"));
    let error = locks.list("").await.unwrap_err();
    check(&error, ErrorKind::Denied, "dynamodb:Scan", "locks");
    // Without the right to look at the table it can be used, with a warning; without the right to make it, there must be one.
    faults.set(deny("describetable", 400, "AccessDeniedException"));
    let unchecked = Locks::connect(&url).await.unwrap();
    assert!(unchecked.warnings()[0].contains("could not be checked"));
    // What a sort key is called cannot be known.
    let sorted = AwsServer::url_at("dynamodb", "locks", faults.port, "&dialect=java&sort_key=-");
    let error = refused(&sorted).await;
    check(&error, ErrorKind::Denied, "dynamodb:DescribeTable", "locks");
    faults.set(deny("createtable", 400, "AccessDeniedException"));
    let other = AwsServer::url_at("dynamodb", "others", faults.port, "");
    let error = refused(&other).await;
    check(&error, ErrorKind::Denied, "cannot be made", "others");
    assert!(error.advice().unwrap().contains("schema dynamodb"));
    // Something else answers.
    faults.set(|_| Fate::IsTold(200, "<html>".to_owned()));
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    check(&error, ErrorKind::Unexpected, "not DynamoDB's", "locks");
}

#[tokio::test]
async fn host_that_is_not_there_is_unreachable() {
    let port = crate::support::free_port();
    let error = refused(&AwsServer::url_at("dynamodb", "locks", port, "&timeout=2s")).await;
    check(
        &error,
        ErrorKind::Unreachable,
        "does not accept connections",
        "locks",
    );
}

#[tokio::test]
async fn full_queue_is_a_busy_error_and_others_go_on() {
    let server = AwsServer::ministack();
    let locks = Locks::connect(server.dynamodb("&timeout=20s"))
        .await
        .unwrap();
    let held = locks.lock("x").ttl(secs(120)).acquire().await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..400 {
        let request = locks.lock("x").reason("r".repeat(900)).wait(secs(15));
        waiting.spawn(request.acquire());
    }
    let mut full = 0;
    while let Some(waited) = waiting.join_next().await {
        let error = waited.unwrap().unwrap_err();
        full += usize::from(error.is_busy() && error.what().contains("full"));
    }
    assert!(full > 0, "400 waiters of 1 KB fit into an item");
    held.release().await.unwrap();
}
