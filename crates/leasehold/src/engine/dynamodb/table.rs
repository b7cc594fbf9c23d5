//! The table: found, checked, and made where there is none.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::client::Client;
use super::config::DynamoDbConfig;
use super::failure;
use crate::clock::Clock;
use crate::engine::doctor::Finding;
use crate::error::{Error, ErrorKind, Result};

/// What the partition key is called in a table of ours, and in those of other lock clients unless they say otherwise.
pub(super) const KEY: &str = "key";

/// The attribute that DynamoDB's own expiry reads.
pub(super) const EXPIRES: &str = "expires";

/// How long a new table may take.
const TO_BE_MADE: Duration = Duration::from_secs(60);

/// What is known of the table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) key: String,
    pub(super) sort_key: Option<String>,
    pub(super) found: Vec<Finding>,
}

/// The commands of AWS's own tool that make the table.
///
/// ```
/// let commands = leasehold::engine::dynamodb::create_table_commands("locks")?;
/// assert!(commands.contains("--billing-mode PAY_PER_REQUEST"));
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors
///
/// `InvalidConfig` if no table can have this name.
pub fn create_table_commands(table: &str) -> Result<String> {
    // What passes means nothing to a shell.
    DynamoDbConfig::new(table).check()?;
    Ok(format!(
        "aws dynamodb create-table --table-name {table} --billing-mode PAY_PER_REQUEST \\\n  \
         --attribute-definitions AttributeName={KEY},AttributeType=S \\\n  \
         --key-schema AttributeName={KEY},KeyType=HASH\n\
         aws dynamodb wait table-exists --table-name {table}\n\
         aws dynamodb update-time-to-live --table-name {table} \\\n  \
         --time-to-live-specification Enabled=true,AttributeName={EXPIRES}\n"
    ))
}

pub(super) async fn find(client: &Client, config: &DynamoDbConfig) -> Result<Table> {
    let table = &config.table;
    let answer = client
        .ask("DescribeTable", &json!({ "TableName": table }))
        .await?;
    let described = match answer {
        Ok(described) => described,
        Err(said) if said.code == "ResourceNotFoundException" => match config.dialect {
            Some(_) => return Err(failure::said(&said, "DescribeTable")),
            None => make(client, table).await?,
        },
        Err(said) => {
            let error = failure::said(&said, "DescribeTable");
            // What a sort key is called is not known without it.
            let is_needed = config.sort_key.is_some();
            if is_needed || !said.code.starts_with("AccessDenied") {
                return Err(error);
            }
            // The rights to use it may be there.
            return Ok(Table {
                key: KEY.to_owned(),
                sort_key: None,
                found: vec![
                    Finding::warning("table", error.what())
                        .means("the table could not be checked")
                        .fix("allow dynamodb:DescribeTable"),
                ],
            });
        }
    };
    let described = wait_until_it_is_there(client, table, described).await?;
    check(&described["Table"], config)
}

async fn make(client: &Client, table: &str) -> Result<Json> {
    let request = json!({
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{ "AttributeName": KEY, "AttributeType": "S" }],
        "KeySchema": [{ "AttributeName": KEY, "KeyType": "HASH" }],
    });
    match client.ask("CreateTable", &request).await? {
        Ok(_) => {}
        // Someone else makes it.
        Err(said) if said.code == "ResourceInUseException" => {}
        Err(said) => {
            let error = failure::said(&said, "CreateTable");
            let what = format!(
                "there is no table {table:?}, and it cannot be made: {}",
                error.what()
            );
            return Err(Error::new(error.kind(), what)
                .advise("let someone make it with what `leasehold schema dynamodb` prints, or allow dynamodb:CreateTable"));
        }
    }
    let described = client
        .call("DescribeTable", &json!({ "TableName": table }))
        .await?;
    let described = wait_until_it_is_there(client, table, described).await?;
    // Without it, locks that are not used any more stay in the table; that is all.
    let expiry = json!({
        "TableName": table,
        "TimeToLiveSpecification": { "Enabled": true, "AttributeName": EXPIRES },
    });
    let _ = client.ask("UpdateTimeToLive", &expiry).await;
    Ok(described)
}

async fn wait_until_it_is_there(client: &Client, table: &str, mut described: Json) -> Result<Json> {
    let clock = Clock::machine();
    let deadline = clock.now() + TO_BE_MADE;
    while described["Table"]["TableStatus"] == "CREATING" {
        if clock.now() > deadline {
            return Err(
                Error::new(ErrorKind::Unreachable, "the new table is not ready yet")
                    .advise("try again in a minute"),
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        described = client
            .call("DescribeTable", &json!({ "TableName": table }))
            .await?;
    }
    Ok(described)
}

fn check(table: &Json, config: &DynamoDbConfig) -> Result<Table> {
    let empty = Vec::new();
    let keys = table["KeySchema"].as_array().unwrap_or(&empty);
    let attributes = table["AttributeDefinitions"].as_array().unwrap_or(&empty);
    let named = |kind: &str| {
        let key = keys.iter().find(|key| key["KeyType"] == kind)?;
        key["AttributeName"].as_str()
    };
    let is_text = |name: &str| {
        let is_it = |attribute: &&Json| attribute["AttributeName"] == name;
        attributes
            .iter()
            .find(is_it)
            .is_some_and(|found| found["AttributeType"] == "S")
    };
    let Some(key) = named("HASH").filter(|key| is_text(key)) else {
        return Err(failure::unfit(format!(
            "the partition key of {:?} is not of type S",
            config.table
        )));
    };
    let sort_key = match (named("RANGE"), &config.sort_key) {
        (None, None) => None,
        (Some(name), Some(_)) if is_text(name) => Some(name.to_owned()),
        (Some(name), Some(_)) => {
            return Err(failure::unfit(format!(
                "the sort key {name:?} is not of type S"
            )));
        }
        (Some(name), None) => {
            let error = failure::unfit(format!("{:?} has a sort key, {name:?}", config.table));
            return Err(match config.dialect {
                Some(_) => error.advise("add sort_key= with the value that the other clients use"),
                None => error,
            });
        }
        (None, Some(_)) => {
            return Err(
                failure::unfit(format!("{:?} has no sort key", config.table))
                    .advise("leave out sort_key="),
            );
        }
    };
    Ok(Table {
        key: key.to_owned(),
        sort_key,
        found: vec![global_table(table)],
    })
}

/// Locks of a table that other regions write to exclude only with strong consistency.
pub(super) fn global_table(table: &Json) -> Finding {
    let replicas = table["Replicas"].as_array().map_or(0, Vec::len);
    if replicas == 0 {
        return Finding::good("global_table", "in one region");
    }
    if table["MultiRegionConsistency"] == "STRONG" {
        return Finding::good(
            "global_table",
            "in several regions, with strong consistency",
        );
    }
    Finding::efficiency(
        "global_table",
        format!("{replicas} replica(s) with eventual consistency"),
    )
    .means("locks exclude within one region only")
    .fix("use a table in one region, or one with multi-region strong consistency")
}
