//! Credentials are found where every AWS tool finds them. A process has one environment, so each case is a process of its own: this binary, started
//! again.

use std::sync::{Arc, Mutex};

use leasehold::Locks;

use crate::support::aws_server::AwsServer;
use crate::support::http_faults::{Fate, HttpFaults};
use crate::support::process::this_test;

const URL: &str = "LEASEHOLD_CREDENTIALS_URL";

#[tokio::test]
async fn as_a_process_of_its_own() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    match Locks::connect(&url).await {
        Ok(locks) => {
            println!("connected to {}", locks.location());
            for _ in 0..2 {
                match locks.lock("x").try_acquire().await {
                    Ok(lease) => println!("acquired {}", lease.is_some()),
                    Err(error) => println!("said {:?}: {error}", error.kind()),
                }
            }
        }
        Err(error) => println!("said {:?}: {error}", error.kind()),
    }
}

/// What a process says whose environment has these.
async fn says(url: &str, environment: &[(&str, &str)]) -> String {
    let mut program = this_test("dynamodb::credentials::as_a_process_of_its_own");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        program.env_remove(name);
    }
    program.env("HOME", "/nowhere").env(URL, url);
    program.env("AWS_EC2_METADATA_DISABLED", "true");
    program.envs(environment.iter().copied());
    let output = tokio::task::spawn_blocking(move || program.output().unwrap());
    String::from_utf8_lossy(&output.await.unwrap().stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_and_profiles_are_read() {
    let server = AwsServer::ministack();
    let faults = HttpFaults::before(server.port()).await;
    let heads = Arc::new(Mutex::new(String::new()));
    faults.set({
        let heads = Arc::clone(&heads);
        move |asked| {
            heads.lock().unwrap().push_str(&asked.head);
            Fate::Passes
        }
    });
    let signed_by = |key: &str, region: &str| {
        let heads = std::mem::take(&mut *heads.lock().unwrap());
        let scope = format!("credential={key}/");
        assert!(
            heads.contains(&scope) && heads.contains(&format!("/{region}/dynamodb/aws4_request")),
            "{heads}"
        );
        heads
    };
    let url = format!("dynamodb://locks?endpoint=http://127.0.0.1:{}", faults.port);
    let keys = [
        ("AWS_ACCESS_KEY_ID", "AKIAENV"),
        ("AWS_SECRET_ACCESS_KEY", "s3cret-word"),
    ];

    let said = says(
        &url,
        &[
            &keys[..],
            &[("AWS_SESSION_TOKEN", "tok"), ("AWS_REGION", "eu-west-1")],
        ]
        .concat(),
    )
    .await;
    assert!(said.contains("connected"), "{said}");
    assert!(signed_by("akiaenv", "eu-west-1").contains("x-amz-security-token: tok"));

    let folder = tempfile::tempdir().unwrap();
    let [credentials, config] = ["credentials", "config"].map(|name| folder.path().join(name));
    std::fs::write(
        &credentials,
        "[two]\naws_access_key_id = AKIAFILE\naws_secret_access_key = s3cret-word\n",
    )
    .unwrap();
    std::fs::write(&config, "[profile two]\nregion = eu-north-1\n").unwrap();
    let files = [
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap()),
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
        ("AWS_PROFILE", "two"),
    ];
    let said = says(&url, &files).await;
    assert!(said.contains("connected"), "{said}");
    signed_by("akiafile", "eu-north-1");

    let said = says(&url, &[]).await;
    assert!(
        said.contains("said Denied") && said.contains("AWS_ACCESS_KEY_ID"),
        "{said}"
    );
    let said = says("dynamodb://locks", &keys).await;
    assert!(
        said.contains("said InvalidConfig") && said.contains("AWS_REGION"),
        "{said}"
    );
}

/// In a file that says nothing of their end, as tools write it that log in for others.
#[tokio::test(flavor = "multi_thread")]
async fn expired_credentials_are_looked_for_anew() {
    let server = AwsServer::ministack();
    let faults = HttpFaults::before(server.port()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    let write = |key: &str| {
        let text = format!(
            "[default]\naws_access_key_id = {key}\naws_secret_access_key = s3cret-word\naws_session_token = tok\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    write("AKIAOLD");
    let renewed = file.clone();
    faults.set(move |asked| {
        if !(asked.writes() && asked.head.contains("credential=akiaold/")) {
            return Fate::Passes;
        }
        let text = std::fs::read_to_string(&renewed).unwrap();
        std::fs::write(&renewed, text.replace("AKIAOLD", "AKIANEW")).unwrap();
        let said = r#"{"__type":"x#ExpiredTokenException","message":"no"}"#;
        Fate::IsTold(400, said.to_owned())
    });
    let url = format!("dynamodb://locks?endpoint=http://127.0.0.1:{}", faults.port);
    let files = [("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap())];
    let said = says(&url, &files).await;
    assert!(
        said.contains("said Denied") && said.contains("have expired"),
        "{said}"
    );
    assert!(said.contains("acquired true"), "{said}");
}
