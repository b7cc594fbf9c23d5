//! Records that refuse stale writes.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::record::{Checked, Content, Fenced, Key, Pass, Record, Stamp, Version};
use crate::error::{Error, ErrorKind, Result};

/// No value is longer: what every store takes with its usual settings.
pub const MAX_VALUE: usize = 1_000_000;

/// For how long a deleted record keeps its token if nothing else is said: a week.
pub const REMEMBER_DELETED: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What a store must do. Each call is atomic, and what it says was written is durable by the store's own measure.
///
/// What has a lifetime is gone when that is over, and counts as never written; a store that cannot end it by itself sweeps a few
/// such records with each write that has one.
#[async_trait]
pub trait GuardedStore: Debug + Send + Sync + 'static {
    /// The record, if there is one that was not deleted.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    async fn read(&self, key: &Key) -> Result<Option<Record>>;

    /// Writes, or deletes, unless a higher token has done so before. A deleted record still refuses lower tokens.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the record was written under another lock; and the
    /// [engine errors](crate::Error#engine-errors), of unknown effect if the write may have been carried out.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the write may or may not be carried out.
    async fn write_fenced(&self, key: &Key, content: Content<'_>, pass: &Pass) -> Result<Fenced>;

    /// Writes, or deletes, if the record is still of this version; for `None`, if there is no record. The highest token stays.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors), of unknown effect if the write may have been carried out.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the write may or may not be carried out.
    async fn write_if(
        &self,
        key: &Key,
        content: Content<'_>,
        version: Option<Version>,
    ) -> Result<Checked>;
}

/// Decides by what is there, what is to be there, and the version that a new record begins with: the record's stamp after the write, or what forbids it.
pub(crate) type Decide<T> =
    Box<dyn Fn(Option<&Stamp>, &Content<'_>, Version) -> Result<Result<Stamp, T>> + Send + Sync>;

/// A store that reads a record, decides and writes as one atomic step: in a transaction, or under a lock.
#[async_trait]
pub(crate) trait AtomicStore: Debug + Send + Sync + 'static {
    /// As [`GuardedStore::read`].
    async fn load(&self, key: &Key) -> Result<Option<Record>>;

    /// Writes what `decide` lets through, and returns its version.
    async fn write<T: Send + 'static>(
        &self,
        key: &Key,
        content: Content<'_>,
        decide: Decide<T>,
    ) -> Result<Result<Version, T>>;
}

#[async_trait]
impl<S: AtomicStore> GuardedStore for S {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        self.load(key).await
    }

    async fn write_fenced(&self, key: &Key, content: Content<'_>, pass: &Pass) -> Result<Fenced> {
        let pass = pass.clone();
        let decide = move |there: Option<&Stamp>, content: &Content<'_>, first| {
            Stamp::fenced(there, &pass, content, first)
        };
        Ok(Fenced::of(
            self.write(key, content, Box::new(decide)).await?,
        ))
    }

    async fn write_if(
        &self,
        key: &Key,
        content: Content<'_>,
        version: Option<Version>,
    ) -> Result<Checked> {
        let decide = move |there: Option<&Stamp>, content: &Content<'_>, first| {
            Ok(Stamp::checked(there, version, content, first))
        };
        Ok(Checked::of(
            self.write(key, content, Box::new(decide)).await?,
        ))
    }
}

/// Guarded records: those of [`Locks::store`](crate::Locks::store), or a [`FileStore`](super::FileStore). Cheap to clone.
///
/// ```
/// # tokio_test(async {
/// use leasehold::{Locks, guard::Fenced};
///
/// let locks = Locks::connect("memory:").await?;
/// let store = locks.store()?;
/// let lease = locks.lock("orders/42").acquire().await?;
/// match store.write_fenced("orders/42", "paid", &lease).await? {
///     Fenced::Written { version } => println!("version {version}"),
///     Fenced::Refused { highest } => println!("too late: {highest} has written"),
/// }
/// store.delete("orders/42", &lease).await?;
/// assert_eq!(store.read("orders/42").await?, None);
/// # Ok::<(), leasehold::Error>(()) });
/// # fn tokio_test(work: impl Future<Output = leasehold::Result<()>>) {
/// #     tokio::runtime::Runtime::new().unwrap().block_on(work).unwrap();
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Store {
    records: Arc<dyn GuardedStore>,
    location: Arc<str>,
    remembers: Duration,
}

impl Store {
    /// A store that the caller has made, and how error messages name it.
    pub fn new(records: Arc<dyn GuardedStore>, location: impl Into<Arc<str>>) -> Self {
        Self {
            records,
            location: location.into(),
            remembers: REMEMBER_DELETED,
        }
    }

    /// For how long records that are deleted through this handle keep their tokens, and a
    /// [`StoredFence`](super::StoredFence) on it those that it has seen; [a week](REMEMBER_DELETED) if it is not set. A holder
    /// that was stopped for longer than this can overwrite what was deleted meanwhile.
    #[must_use]
    pub fn remember_deleted(mut self, time: Duration) -> Self {
        self.remembers = time;
        self
    }

    /// The record, if there is one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the key cannot be used; and the [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    pub async fn read(&self, key: impl AsRef<str>) -> Result<Option<Record>> {
        self.at(Key::new(key)?).read().await
    }

    /// Writes unless a higher token has written before. Equal tokens may write again: it is the same holder.
    ///
    /// The pass is a [`Lease`](crate::Lease), a [`LeaseView`](crate::LeaseView) or a token alone. With the first two the record remembers
    /// the lock, and refuses the tokens of other locks with an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the key cannot be used, the value is longer than [`MAX_VALUE`], or the record is guarded by
    /// another lock; and the [engine errors](crate::Error#engine-errors). A stale token is no error: [`Fenced::Refused`]. If the
    /// effect is unknown, the same holder may write again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the write may or may not be carried out. The same holder may write again.
    pub async fn write_fenced(
        &self,
        key: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        pass: impl Into<Pass>,
    ) -> Result<Fenced> {
        let content = Content::value(value.as_ref());
        self.at(Key::new(key)?)
            .write_fenced(content, pass.into())
            .await
    }

    /// Writes if the record is still of this version; for `None`, if there is no record.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the key cannot be used or the value is longer than [`MAX_VALUE`]; and the
    /// [engine errors](crate::Error#engine-errors). Another version is no error: [`Checked::Changed`]. If the effect is unknown,
    /// read the record again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the write may or may not be carried out: read the record again.
    pub async fn write_if(
        &self,
        key: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        version: Option<Version>,
    ) -> Result<Checked> {
        let content = Content::value(value.as_ref());
        self.at(Key::new(key)?).write_if(content, version).await
    }

    /// Deletes the record unless a higher token has written before. Lower tokens are refused from then on, for as long as
    /// [deleted records are remembered](Self::remember_deleted), also if there was no record.
    ///
    /// # Errors
    ///
    /// Those of [`write_fenced`](Self::write_fenced).
    ///
    /// # Cancel safety
    ///
    /// That of [`write_fenced`](Self::write_fenced).
    pub async fn delete(&self, key: impl AsRef<str>, pass: impl Into<Pass>) -> Result<Fenced> {
        let content = Content::deleted(self.remembers);
        self.at(Key::new(key)?)
            .write_fenced(content, pass.into())
            .await
    }

    /// Deletes the record if it is still of this version. Its highest token is remembered as for [`delete`](Self::delete).
    ///
    /// # Errors
    ///
    /// Those of [`write_if`](Self::write_if).
    ///
    /// # Cancel safety
    ///
    /// That of [`write_if`](Self::write_if).
    pub async fn delete_if(&self, key: impl AsRef<str>, version: Version) -> Result<Checked> {
        let content = Content::deleted(self.remembers);
        self.at(Key::new(key)?)
            .write_if(content, Some(version))
            .await
    }

    /// One of its records.
    pub(crate) fn at(&self, key: Key) -> Slot {
        Slot {
            store: self.clone(),
            key,
        }
    }

    pub(crate) fn remembers(&self) -> Duration {
        self.remembers
    }

    fn with_context(&self, error: Error, operation: &'static str) -> Error {
        error.during(operation, &*self.location)
    }
}

/// One record of a store, which recipes may have under a key that users cannot make.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    store: Store,
    pub(crate) key: Key,
}

impl Slot {
    pub(crate) async fn read(&self) -> Result<Option<Record>> {
        let read = self.store.records.read(&self.key).await;
        read.map_err(|error| self.store.with_context(error, "read a record"))
    }

    pub(crate) async fn write_fenced(&self, content: Content<'_>, pass: Pass) -> Result<Fenced> {
        check_size(&content)?;
        let records = &self.store.records;
        let written = records.write_fenced(&self.key, content, &pass).await;
        written.map_err(|error| self.store.with_context(error, operation(&content)))
    }

    pub(crate) async fn write_if(
        &self,
        content: Content<'_>,
        version: Option<Version>,
    ) -> Result<Checked> {
        check_size(&content)?;
        let records = &self.store.records;
        let written = records.write_if(&self.key, content, version).await;
        written.map_err(|error| self.store.with_context(error, operation(&content)))
    }
}

fn operation(content: &Content<'_>) -> &'static str {
    match content.value {
        Some(_) => "write a record",
        None => "delete a record",
    }
}

fn check_size(content: &Content<'_>) -> Result<()> {
    let size = content.value.map_or(0, <[u8]>::len);
    if size > MAX_VALUE {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("a value of {size} bytes is too large"),
        )
        .advise(format!(
            "keep it within {MAX_VALUE} bytes; store a large thing elsewhere, and here where it is"
        )));
    }
    Ok(())
}
