//! Who we are: found where every AWS tool finds it, by `reqsign`, with our own HTTP client.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use reqsign_aws_v4::{
    Credential, DefaultCredentialProvider, RequestSigner, StaticCredentialProvider,
};
use reqsign_core::{
    CommandExecute, CommandOutput, Context, Error, FileRead, HttpSend, OsEnv, Result, Signer,
};

use super::client::Http;
use super::config::Keys;

/// Where credentials come from over the network, they come soon or not at all.
const SOON: Duration = Duration::from_secs(2);

/// Signs requests to a service: `dynamodb` or `s3`; with these keys, if any are given.
pub(super) fn signer(
    http: Http,
    service: &str,
    region: &str,
    keys: Option<&Keys>,
) -> Signer<Credential> {
    let context = Context::new()
        .with_file_read(Files)
        .with_http_send(Network(http))
        .with_command_execute(Commands)
        .with_env(OsEnv);
    let signs = RequestSigner::new(service, region);
    match keys {
        Some(Keys { id, secret }) => {
            Signer::new(context, StaticCredentialProvider::new(id, secret), signs)
        }
        None => Signer::new(context, DefaultCredentialProvider::new(), signs),
    }
}

/// The same, which has forgotten what it found, and looks again.
pub(super) fn anew(signer: Signer<Credential>) -> Signer<Credential> {
    signer.with_credential_provider(DefaultCredentialProvider::new())
}

#[derive(Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> Result<Vec<u8>> {
        let read = tokio::fs::read(PathBuf::from(path)).await;
        read.map_err(|cause| Error::config_invalid("a file cannot be read").with_source(cause))
    }
}

#[derive(Debug)]
struct Network(Http);

impl HttpSend for Network {
    async fn http_send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        match tokio::time::timeout(SOON, self.0.send(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Error::unexpected("no answer")),
            Err(_) => Err(Error::unexpected("no answer in time")),
        }
    }
}

#[derive(Debug)]
struct Commands;

impl CommandExecute for Commands {
    async fn command_execute(&self, program: &str, arguments: &[&str]) -> Result<CommandOutput> {
        let mut command = tokio::process::Command::new(program);
        let output = command.args(arguments).kill_on_drop(true).output().await;
        let output = output
            .map_err(|cause| Error::config_invalid("a program cannot be run").with_source(cause))?;
        Ok(CommandOutput {
            status: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }
}
