//! Guarded records: a node each, written on condition of its version.
//!
//! A node that is removed and made anew counts its versions from the start. A request that is late, such as one of a process that was stopped, could so
//! meet a version of the same number. Hence each node that is made has an incarnation, a random number, which is on its first line and is the name of its only child;
//! whatever changes or removes the node does so on condition that this child is there.
//!
//! Servers end no node by the clock unless they are configured so. So a record that ends says when, on its first line as well, by
//! the clock of the host that wrote it; whoever finds that it has ended takes it away. For those that nobody looks for, an empty
//! node of the same name stands under `~ends/` and the ten minutes in which they end, and each write that adds one clears away a few that are due.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use zookeeper_client::{CreateMode, Error as Said, MultiWriteResult, MultiWriter};

use super::nodes::Nodes;
use super::{Locks, failure};
use crate::claim::fill_with_random;
use crate::error::{ErrorKind, Result};
use crate::guard::by_version::{CompareAndSet, Loaded, Sealed, Swap, no_record};
use crate::guard::{Key, Version, ends_at};
use crate::token::wall_clock_micros;

/// As after a stop, when first the connection is found broken, and then the session ended.
const TRIES: usize = 3;

/// What ends within so many microseconds stands together: ten minutes.
const SPAN: u64 = 10 * 60 * 1_000_000;

/// How many that have ended each write takes away that adds one.
const SWEEP: usize = 8;

#[derive(Debug)]
pub(crate) struct Records(Arc<Locks>);

impl Records {
    pub(super) fn of(locks: Arc<Locks>) -> Self {
        Self(locks)
    }

    async fn nodes(&self) -> Result<Nodes<'_>> {
        self.0.nodes().await
    }
}

/// Does this until it is not interrupted, a few times.
async fn again_if_interrupted<T, F>(work: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    for _ in 1..TRIES {
        match work().await {
            Err(error) if failure::was_interrupted(&error) => {}
            done => return done,
        }
    }
    work().await
}

/// A node's version starts over when it is deleted and made again; the transaction that wrote it never comes back.
fn version(mzxid: i64) -> Version {
    Version::new(mzxid.unsigned_abs())
}

/// A state of a node that never comes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    incarnation: u128,
    version: i32,
}

#[async_trait]
impl CompareAndSet for Records {
    type Mark = Mark;

    async fn load(&self, key: &Key) -> Result<Option<Loaded<Mark>>> {
        again_if_interrupted(|| self.load_once(key)).await
    }

    async fn swap(&self, key: &Key, new: Sealed, expected: Option<Mark>) -> Result<Swap> {
        let ends = new.lifetime.map(ends_at);
        if new.lifetime == Some(Duration::ZERO) {
            return self.remove(key, expected).await;
        }
        if let Some(ends) = ends {
            self.note(key, ends).await?;
        }
        let incarnation = match expected {
            Some(mark) => mark.incarnation,
            None => random_incarnation()?,
        };
        let node = Node {
            ends,
            incarnation,
            record: new.bytes,
        };
        let expected = expected.map(|mark| mark.version);
        let swapped = self.swap_again(key, &node, expected).await?;
        if ends.is_some() {
            // What cannot be cleared away now is next time.
            let _ = self.sweep().await;
        }
        Ok(swapped)
    }
}

impl Records {
    async fn swap_again(&self, key: &Key, node: &Node, expected: Option<i32>) -> Result<Swap> {
        match self.swap_once(key, node, expected).await {
            Err(error) if failure::was_interrupted(&error) => {}
            swapped => return swapped,
        }
        for nth in 1..TRIES {
            match self.swap_once(key, node, expected).await {
                Err(error) if failure::was_interrupted(&error) && nth + 1 < TRIES => {}
                // Perhaps by us.
                Ok(Swap::Changed) => return Ok(Swap::MaybeApplied),
                swapped => return swapped,
            }
        }
        Ok(Swap::MaybeApplied)
    }

    async fn load_once(&self, key: &Key) -> Result<Option<Loaded<Mark>>> {
        let nodes = self.nodes().await?;
        let path = self.0.config.root.record(key);
        // Both travel together: what is read is no older than the question.
        let (synced, read) = tokio::join!(nodes.catch_up(), nodes.data(&path));
        synced?;
        let Some((bytes, stat)) = read? else {
            return Ok(None);
        };
        let node = Node::from_bytes(bytes).ok_or_else(no_record)?;
        let mark = node.mark(stat.version);
        if node.has_ended(wall_clock_micros()) {
            // If it has been written anew meanwhile, that was after this was asked.
            return match remove_once(&nodes, &path, mark).await {
                Err(error) if error.kind() != ErrorKind::Denied => Err(error),
                _ => Ok(None),
            };
        }
        Ok(Some(Loaded {
            bytes: node.record,
            version: version(stat.mzxid),
            mark,
        }))
    }

    async fn swap_once(&self, key: &Key, node: &Node, expected: Option<i32>) -> Result<Swap> {
        let nodes = self.nodes().await?;
        let path = self.0.config.root.record(key);
        let child = child(&path, node.incarnation);
        let bytes = node.to_bytes();
        if let Some(expected) = expected {
            return all_or_none(&nodes, |request| {
                let any_version = -1;
                request.add_check_version(&child, any_version)?;
                request.add_set_data(&path, &bytes, Some(expected))
            })
            .await;
        }
        let options = CreateMode::Persistent.with_acls(nodes.acls());
        loop {
            let made = all_or_none(&nodes, |request| {
                request.add_create(&path, b"", &options)?;
                request.add_create(&child, b"", &options)?;
                // Within such a request, servers do not reliably return when a new node was made.
                request.add_set_data(&path, &bytes, None)
            });
            match made.await {
                Err(error) if failure::is_there(&error) => return Ok(Swap::Changed),
                Ok(Swap::Changed) => nodes.make_own(&self.0.config.root.records()).await?,
                made => return made,
            }
        }
    }

    /// Leaves nothing behind.
    async fn remove(&self, key: &Key, expected: Option<Mark>) -> Result<Swap> {
        let Some(expected) = expected else {
            return Ok(Swap::Done(Version::new(0)));
        };
        let path = self.0.config.root.record(key);
        remove_once(&self.nodes().await?, &path, expected).await
    }

    /// Notes when a record ends, before it is written: so none is ever forgotten.
    async fn note(&self, key: &Key, ends: u64) -> Result<()> {
        again_if_interrupted(|| self.note_once(key, ends)).await
    }

    async fn note_once(&self, key: &Key, ends: u64) -> Result<()> {
        let nodes = self.nodes().await?;
        let root = &self.0.config.root;
        let endings = root.endings();
        let together = format!("{endings}/{:x}", ends / SPAN + 1);
        let record = root.record(key);
        let name = record.rsplit('/').next().unwrap_or_default();
        let path = format!("{together}/{name}");
        loop {
            match nodes.make_own(&path).await {
                Err(error) if failure::is_missing(&error) => {}
                made => return made,
            }
            match nodes.make_own(&together).await {
                Err(error) if failure::is_missing(&error) => nodes.make_own(&endings).await?,
                made => made?,
            }
        }
    }

    /// Clears away a few that are due.
    async fn sweep(&self) -> Result<()> {
        let nodes = self.nodes().await?;
        let root = &self.0.config.root;
        let now = wall_clock_micros();
        let spans = nodes.children(&root.endings()).await?;
        let spans = spans
            .iter()
            .filter_map(|span| u64::from_str_radix(span, 16).ok());
        let Some(first) = spans.min().filter(|span| span.saturating_mul(SPAN) <= now) else {
            return Ok(());
        };
        let together = format!("{}/{first:x}", root.endings());
        let names = nodes.children(&together).await?;
        for name in names.iter().take(SWEEP) {
            let record = format!("{}/{name}", root.records());
            if let Some((bytes, stat)) = nodes.data(&record).await?
                && let Some(node) = Node::from_bytes(bytes)
                && node.has_ended(now)
            {
                remove_once(&nodes, &record, node.mark(stat.version)).await?;
            }
            nodes.delete(&format!("{together}/{name}")).await?;
        }
        if names.len() <= SWEEP {
            // Refused if something has come in meanwhile.
            nodes.delete(&together).await?;
        }
        Ok(())
    }
}

/// What is in a record's node: a line that says when the record ends, if it does, and the incarnation; the rest is the record.
struct Node {
    ends: Option<u64>,
    incarnation: u128,
    record: Vec<u8>,
}

impl Node {
    fn to_bytes(&self) -> Vec<u8> {
        let ends = self.ends.map_or(String::new(), |ends| ends.to_string());
        let mut bytes = format!("{ends} {:032x}\n", self.incarnation).into_bytes();
        bytes.extend_from_slice(&self.record);
        bytes
    }

    /// `None` for what another program has written.
    fn from_bytes(mut bytes: Vec<u8>) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let record = bytes.split_off(end + 1);
        let line = std::str::from_utf8(&bytes[..end]).ok()?;
        let (ends, incarnation) = line.split_once(' ')?;
        let ends = match ends {
            "" => None,
            ends => Some(ends.parse().ok()?),
        };
        Some(Self {
            ends,
            incarnation: u128::from_str_radix(incarnation, 16).ok()?,
            record,
        })
    }

    fn has_ended(&self, now: u64) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }

    fn mark(&self, version: i32) -> Mark {
        Mark {
            incarnation: self.incarnation,
            version,
        }
    }
}

fn random_incarnation() -> Result<u128> {
    let mut bits = [0; 16];
    fill_with_random(&mut bits)?;
    Ok(u128::from_be_bytes(bits))
}

/// The node that is there for as long as the record's node of this incarnation is.
fn child(record: &str, incarnation: u128) -> String {
    format!("{record}/{incarnation:032x}")
}

async fn remove_once(nodes: &Nodes<'_>, path: &str, expected: Mark) -> Result<Swap> {
    all_or_none(nodes, |request| {
        request.add_delete(&child(path, expected.incarnation), None)?;
        // A deletion alone does not show the transaction that it was.
        request.add_set_data(path, b"", Some(expected.version))?;
        request.add_delete(path, None)
    })
    .await
}

/// Carries out steps in one transaction, one of which writes; none if the nodes are not as the steps expect them.
async fn all_or_none(
    nodes: &Nodes<'_>,
    steps: impl FnOnce(&mut MultiWriter<'_>) -> Result<(), Said>,
) -> Result<Swap> {
    let session = &nodes.session;
    let mut request = session.client.new_multi_writer();
    steps(&mut request).map_err(failure::of_request)?;
    match session.write(|_| request.commit()).await {
        Ok(done) => {
            let written = done.iter().find_map(|done| match done {
                MultiWriteResult::SetData { stat } => Some(version(stat.mzxid)),
                _ => None,
            });
            Ok(Swap::Done(written.unwrap_or(Version::new(0))))
        }
        Err(error) if failure::is_other_version(&error) || failure::is_missing(&error) => {
            Ok(Swap::Changed)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_node_is_read_back_and_nonsense_is_not() {
        for (ends, incarnation) in [(None, 0), (Some(7), u128::MAX)] {
            let record = b"5\n\n\na b\n".to_vec();
            let node = Node {
                ends,
                incarnation,
                record: record.clone(),
            };
            let read = Node::from_bytes(node.to_bytes()).unwrap();
            assert_eq!((read.ends, read.incarnation), (ends, incarnation));
            assert_eq!(read.record, record);
        }
        for nonsense in [
            "", "7 1f", "\n", "7\n", "7 \n", "x 1f\n", "7 1f \n", "7 xyz\n",
        ] {
            assert!(Node::from_bytes(nonsense.into()).is_none(), "{nonsense:?}");
        }
    }
}
