//! What the doctor finds in a table.

use crate::support::aws_server::AwsServer;
use crate::support::findings::until_wrong;

#[tokio::test]
async fn a_table_without_expiry_is_found_until_it_is_mended() {
    let server = AwsServer::ministack();
    let url = server.dynamodb("");
    until_wrong(&url, &[]).await;
    let set = |enabled: bool, attribute: &str| {
        let body = format!(
            r#"{{"TableName": "locks", "TimeToLiveSpecification": {{"Enabled": {enabled}, "AttributeName": "{attribute}"}}}}"#
        );
        server.dynamo("UpdateTimeToLive", &body)
    };
    set(false, "expires");
    until_wrong(&url, &["leftovers"]).await;
    set(true, "other");
    until_wrong(&url, &["leftovers"]).await;
    set(true, "expires");
    until_wrong(&url, &[]).await;
    until_wrong(&server.dynamodb("&max_clock_skew=1s"), &["clock_skew"]).await;
}
