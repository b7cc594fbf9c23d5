//! What the doctor finds in a bucket.

use crate::support::aws_server::AwsServer;
use crate::support::findings::until_wrong;

#[tokio::test]
async fn versions_and_rules_that_delete_locks_are_found_until_they_are_mended() {
    let server = AwsServer::ministack();
    server.make_bucket();
    let url = server.s3("");
    until_wrong(&url, &[]).await;
    let versioning = |status: &str| {
        format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>")
    };
    server.put_setting("versioning", &versioning("Enabled"));
    until_wrong(&url, &["versioning"]).await;
    server.put_setting("versioning", &versioning("Suspended"));
    until_wrong(&url, &[]).await;

    let rule = |prefix: &str| {
        format!(
            "<LifecycleConfiguration><Rule><ID>old</ID><Filter><Prefix>{prefix}</Prefix></Filter>\
             <Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>"
        )
    };
    server.put_setting("lifecycle", &rule(""));
    until_wrong(&url, &["lifecycle"]).await;
    server.put_setting("lifecycle", &rule("logs/"));
    until_wrong(&url, &[]).await;
}
