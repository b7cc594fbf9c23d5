//! What a table's settings mean for locks.

use serde_json::{Value as Json, json};

use super::client::Client;
use super::config::DynamoDbConfig;
use super::table::{self, EXPIRES};
use crate::engine::doctor::Finding;

pub(super) async fn findings(client: &Client, config: &DynamoDbConfig) -> Vec<Finding> {
    let asked = json!({ "TableName": config.table });
    let described = client.ask("DescribeTable", &asked).await;
    let Ok(Ok(described)) = described else {
        return vec![Finding::unknown(
            "settings",
            "the user may not ask (dynamodb:DescribeTable)",
        )];
    };
    let table = &described["Table"];
    let mut findings = vec![table::global_table(table), status(&table["TableStatus"])];
    // Other clients have attributes of their own.
    if config.dialect.is_none() {
        let answer = client.ask("DescribeTimeToLive", &asked).await;
        findings.push(match answer {
            Ok(Ok(told)) => expiry_attribute(&told["TimeToLiveDescription"], &config.table),
            _ => Finding::unknown(
                "leftovers",
                "the user may not ask (dynamodb:DescribeTimeToLive)",
            ),
        });
    }
    findings
}

fn status(status: &Json) -> Finding {
    Finding::of("table", status.as_str(), |status| match status {
        "ACTIVE" | "UPDATING" => Finding::good("table", status),
        _ => Finding::unfit("table", status)
            .means("the table cannot be used")
            .fix("see what has become of it: aws dynamodb describe-table"),
    })
}

fn expiry_attribute(told: &Json, table: &str) -> Finding {
    let is_on = matches!(
        told["TimeToLiveStatus"].as_str(),
        Some("ENABLED" | "ENABLING")
    );
    let attribute = told["AttributeName"].as_str().unwrap_or_default();
    if is_on && attribute == EXPIRES {
        return Finding::good("leftovers", format!("TTL on {EXPIRES:?}"));
    }
    let seen = match is_on {
        true => format!("TTL on {attribute:?}"),
        false => "no TTL".to_owned(),
    };
    Finding::warning("leftovers", seen)
        .means("items of locks that are no longer used stay in the table")
        .fix(format!(
            "aws dynamodb update-time-to-live --table-name {table} --time-to-live-specification Enabled=true,AttributeName={EXPIRES}"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    #[test]
    fn items_expire_by_our_attribute() {
        for (state, attribute, weight) in [
            ("ENABLED", EXPIRES, Weight::Good),
            ("ENABLED", "ttl", Weight::Warning),
            ("DISABLED", EXPIRES, Weight::Warning),
        ] {
            let told = json!({ "TimeToLiveStatus": state, "AttributeName": attribute });
            assert_eq!(expiry_attribute(&told, "locks").weight, weight, "{told}");
        }
    }
}
