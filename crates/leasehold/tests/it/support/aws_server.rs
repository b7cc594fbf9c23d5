//! Servers that speak as DynamoDB and S3 do: ministack for both, and dynalite for DynamoDB. `fleets/install.sh` installs them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::server_process::{ServerProcess, data};
use super::server_user::folder;

/// Of the tests; the servers accept any.
pub const KEYS: &str = "AKIATEST:s3cret-word";

pub struct AwsServer(pub ServerProcess);

fn installed(path: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let path = target.join("fleets").join(path);
    let missing = format!("{} is missing: ./test.sh installs it", path.display());
    assert!(path.exists(), "{missing}");
    path
}

impl AwsServer {
    /// Keeps what it has through a stop in good order.
    pub fn ministack() -> Self {
        let program = installed("venv/bin/ministack");
        let start = move |port: u16, folder: &Path| {
            let mut command = Command::new(&program);
            command
                .env("BIND_HOST", "127.0.0.1")
                .env("GATEWAY_PORT", port.to_string())
                .env("SERVICES", "dynamodb,s3")
                .env("PERSIST_STATE", "1")
                .env("S3_PERSIST", "1")
                .env("STATE_DIR", data(folder))
                .env("S3_DATA_DIR", data(folder).join("s3"))
                .env("LOG_LEVEL", "ERROR");
            command
        };
        Self(ServerProcess::start(folder(), start, answers))
    }

    /// Keeps what it has through anything.
    pub fn dynalite() -> Self {
        let program = installed("node_modules/.bin/dynalite");
        let start = move |port: u16, folder: &Path| {
            let mut command = Command::new(&program);
            command
                .args(["--host", "127.0.0.1", "--port", &port.to_string()])
                .args(["--createTableMs", "0", "--path"])
                .arg(data(folder));
            command
        };
        Self(ServerProcess::start(folder(), start, answers))
    }

    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// A URL of a table or a bucket behind this port, with more options.
    pub fn url_at(scheme: &str, name: &str, port: u16, options: &str) -> String {
        format!("{scheme}://{KEYS}@{name}?endpoint=http://127.0.0.1:{port}{options}")
    }

    pub fn dynamodb(&self, options: &str) -> String {
        Self::url_at("dynamodb", "locks", self.port(), options)
    }

    /// In the bucket that was made for it.
    pub fn s3(&self, options: &str) -> String {
        Self::url_at("s3", "locks-of-tests/app", self.port(), options)
    }

    pub fn make_bucket(&self) {
        let answer = ask(self.port(), "PUT", "/locks-of-tests", &[], "");
        let answer = answer.expect("the server answers");
        assert!(
            answer.starts_with("HTTP/1.1 200") || answer.contains("409"),
            "{answer}"
        );
    }

    /// One call of DynamoDB, as anybody would make it.
    pub fn dynamo(&self, call: &str, body: &str) -> String {
        let target = format!("DynamoDB_20120810.{call}");
        let headers = [
            ("x-amz-target", target.as_str()),
            ("content-type", "application/x-amz-json-1.0"),
        ];
        let answer = ask(self.port(), "POST", "/", &headers, body).expect("the server answers");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or(("", ""));
        body.to_owned()
    }

    /// One object, as anybody would write it.
    pub fn put_object(&self, key: &str, body: &str) {
        let answer = ask(
            self.port(),
            "PUT",
            &format!("/locks-of-tests/{key}"),
            &[],
            body,
        );
        assert!(answer.is_some_and(|answer| answer.starts_with("HTTP/1.1 200")));
    }

    /// A setting of the bucket, as its owner would change it.
    pub fn put_setting(&self, name: &str, body: &str) {
        let path = format!("/locks-of-tests?{name}");
        let answer = ask(self.port(), "PUT", &path, &[], body).expect("the server answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// Stops it in good order, and starts it again.
    pub fn restart(&self) {
        self.0.stop(Signal::SIGTERM);
        self.0.revive();
    }

    /// In the midst of whatever it does.
    pub fn kill_and_revive(&self) {
        self.0.stop(Signal::SIGKILL);
        self.0.revive();
    }
}

fn answers(port: u16) -> bool {
    let list = [
        ("x-amz-target", "DynamoDB_20120810.ListTables"),
        ("content-type", "application/x-amz-json-1.0"),
    ];
    ask(port, "POST", "/", &list, "{}").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// With credentials that look like ones; nobody checks them.
fn ask(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .ok()?;
    let mut request =
        format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n");
    request += "x-amz-date: 20260101T000000Z\r\n";
    // The server tells by it which service is meant.
    let service = if path == "/" { "dynamodb" } else { "s3" };
    request += &format!(
        "authorization: AWS4-HMAC-SHA256 Credential=AKIATEST/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=0\r\n"
    );
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}
