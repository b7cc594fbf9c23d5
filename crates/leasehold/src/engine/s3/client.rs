//! The calls of S3: one object, on condition.

use bytes::Bytes;
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::failure;
use crate::engine::aws::client::{Answer, Ask, Client as Signed};
use crate::engine::aws::config::Place;
use crate::error::Result;

/// How a key stands in a path.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// How a value stands in a query.
const QUERY: &AsciiSet = &PATH.add(b'/');

#[derive(Debug)]
pub(super) struct Client {
    signed: Signed,
    /// What stands before a key in a path.
    root: String,
}

/// On which condition an object is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum If<'a> {
    Absent,
    Tagged(&'a str),
}

impl Client {
    pub(super) fn new(place: &Place, bucket: &str) -> Result<Self> {
        let s3 = format!("s3.{}.{}", place.region, place.domain());
        // A certificate is for one part of a name only.
        let in_path = place.endpoint.is_some() || bucket.contains('.');
        let (host, root) = match in_path {
            true => (s3, format!("/{bucket}/")),
            false => (format!("{bucket}.{s3}"), "/".to_owned()),
        };
        Ok(Self {
            signed: Signed::new(place, "s3", &host)?,
            root,
        })
    }

    pub(super) fn requests(&self) -> u64 {
        self.signed.requests()
    }

    async fn send(
        &self,
        method: Method,
        path: String,
        headers: Vec<(&'static str, String)>,
        body: Bytes,
    ) -> Result<Answer> {
        let ask = Ask {
            method,
            path,
            headers,
            body,
        };
        self.signed.send(ask).await
    }

    fn path(&self, key: &str) -> String {
        format!("{}{}", self.root, utf8_percent_encode(key, PATH))
    }

    /// The object and its tag.
    pub(super) async fn get(&self, key: &str) -> Result<Option<(Bytes, String)>> {
        let answer = self
            .send(Method::GET, self.path(key), Vec::new(), Bytes::new())
            .await?;
        if answer.status.is_success() {
            let tag = tag(&answer)?;
            return Ok(Some((answer.body, tag)));
        }
        let said = failure::read(&answer);
        match said.status == 404 && said.code != "NoSuchBucket" {
            true => Ok(None),
            false => Err(failure::said(&said, "s3:GetObject", &answer)),
        }
    }

    /// The new tag; `None` if the condition does not hold.
    pub(super) async fn put(
        &self,
        key: &str,
        body: Vec<u8>,
        condition: If<'_>,
    ) -> Result<Option<String>> {
        let condition = match condition {
            If::Absent => ("if-none-match", "*".to_owned()),
            If::Tagged(tag) => ("if-match", tag.to_owned()),
        };
        let headers = vec![condition, ("content-type", "application/json".to_owned())];
        let answer = self
            .send(Method::PUT, self.path(key), headers, Bytes::from(body))
            .await?;
        if answer.status.is_success() {
            return Ok(Some(tag(&answer)?));
        }
        let said = failure::read(&answer);
        match (said.status, said.code.as_str()) {
            // It was there, and others write it; or it is gone.
            (412 | 409, _) | (404, "NoSuchKey") => Ok(None),
            _ => Err(failure::said(&said, "s3:PutObject", &answer)),
        }
    }

    /// A setting of the bucket, as XML; `None` if it has none.
    pub(super) async fn setting(&self, name: &str) -> Result<Option<String>> {
        let path = format!("{}?{name}", self.root);
        let answer = self
            .send(Method::GET, path, Vec::new(), Bytes::new())
            .await?;
        if answer.status.is_success() {
            return Ok(Some(String::from_utf8_lossy(&answer.body).into_owned()));
        }
        let said = failure::read(&answer);
        match said.code.starts_with("NoSuch") {
            true => Ok(None),
            false => Err(failure::said(
                &said,
                &format!("the setting {name}"),
                &answer,
            )),
        }
    }

    /// The keys that begin with this.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        let mut from = String::new();
        loop {
            let prefix = utf8_percent_encode(prefix, QUERY);
            let path = format!("{}?{from}list-type=2&prefix={prefix}", self.root);
            let answer = self
                .send(Method::GET, path, Vec::new(), Bytes::new())
                .await?;
            if !answer.status.is_success() {
                let said = failure::read(&answer);
                return Err(failure::said(&said, "s3:ListBucket", &answer));
            }
            let text = String::from_utf8_lossy(&answer.body);
            keys.extend(failure::elements(&text, "Key").map(str::to_owned));
            let next = failure::elements(&text, "NextContinuationToken").next();
            match next {
                Some(next) => {
                    from = format!(
                        "continuation-token={}&",
                        utf8_percent_encode(&unescaped(next), QUERY)
                    );
                }
                None => return Ok(keys),
            }
        }
    }
}

/// A text of XML; keys of ours have nothing to be escaped.
fn unescaped(text: &str) -> String {
    let table = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    table
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn tag(answer: &Answer) -> Result<String> {
    let tag = answer.headers.get("etag").and_then(|tag| tag.to_str().ok());
    tag.map(str::to_owned).ok_or_else(failure::no_tag)
}
