//! The calls of DynamoDB: JSON over HTTP.

use bytes::Bytes;
use http::Method;
use serde_json::{Value as Json, json};

use super::failure;
use super::item::Item;
use crate::engine::aws::client::{Answer, Ask, Client as Signed};
use crate::engine::aws::config::Place;
use crate::engine::aws::failure::Said;
use crate::error::Result;

#[derive(Debug)]
pub(super) struct Client(Signed);

/// What a write on condition came to.
#[derive(Debug)]
pub(super) enum Conditional {
    /// With what was there before, if that was asked for.
    Done(Option<Item>),
    /// The condition does not hold; with what is there, if the server tells.
    Refused(Option<Item>),
}

impl Client {
    pub(super) fn new(place: &Place, host: &str) -> Result<Self> {
        Ok(Self(Signed::new(place, "dynamodb", host)?))
    }

    pub(super) fn requests(&self) -> u64 {
        self.0.requests()
    }

    async fn send(
        &self,
        call: &'static str,
        body: &Json,
    ) -> Result<std::result::Result<Json, (Said, Json)>> {
        let ask = Ask {
            method: Method::POST,
            path: "/".to_owned(),
            headers: vec![
                ("content-type", "application/x-amz-json-1.0".to_owned()),
                ("x-amz-target", format!("DynamoDB_20120810.{call}")),
            ],
            body: Bytes::from(body.to_string()),
        };
        let Answer { status, body, .. } = self.0.send(ask).await?;
        let said: Json = serde_json::from_slice(&body).unwrap_or(Json::Null);
        if status.is_success() && said.is_object() {
            return Ok(Ok(said));
        }
        let text = |name: &str| said.get(name).and_then(Json::as_str).unwrap_or("");
        let code = text("__type").rsplit('#').next().unwrap_or("");
        let code = match code {
            "" => "an answer that is not DynamoDB's",
            code => code,
        };
        let message = [text("message"), text("Message")].concat();
        let said_by_aws = Said {
            status: status.as_u16(),
            code: code.to_owned(),
            message,
        };
        Ok(Err((said_by_aws, said)))
    }

    /// What DynamoDB answers, or what it says instead.
    pub(super) async fn ask(
        &self,
        call: &'static str,
        body: &Json,
    ) -> Result<std::result::Result<Json, Said>> {
        let answer = self.send(call, body).await?;
        Ok(answer.map_err(|(said, _)| said))
    }

    pub(super) async fn call(&self, call: &'static str, body: &Json) -> Result<Json> {
        let answer = self.ask(call, body).await?;
        answer.map_err(|said| failure::said(&said, call))
    }

    pub(super) async fn write(&self, call: &'static str, body: &Json) -> Result<Conditional> {
        match self.send(call, body).await? {
            Ok(done) => Ok(Conditional::Done(done.get("Attributes").and_then(read))),
            Err((said, whole)) if said.code == "ConditionalCheckFailedException" => {
                let item = whole
                    .get("Item")
                    .filter(|item| item.as_object().is_some_and(|item| !item.is_empty()));
                Ok(Conditional::Refused(item.and_then(read)))
            }
            Err((said, _)) => Err(failure::said(&said, call)),
        }
    }

    /// One item as it is at this moment.
    pub(super) async fn get(&self, table: &str, key: &Item) -> Result<Option<Item>> {
        let answer = self
            .call(
                "GetItem",
                &json!({ "TableName": table, "Key": key, "ConsistentRead": true }),
            )
            .await?;
        Ok(answer.get("Item").and_then(read))
    }
}

/// An item of an answer.
pub(super) fn read(json: &Json) -> Option<Item> {
    serde_json::from_value(json.clone()).ok()
}
