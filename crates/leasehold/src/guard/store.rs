//! Records that refuse stale writes.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use super::record::{Checked, Fenced, Key, Pass, Record, Version};
use crate::error::{Error, ErrorKind, Result};

/// No value is longer: what every store takes with its usual settings.
pub const MAX_VALUE: usize = 1_000_000;

/// What a store must do. Each call is atomic, and what it says was written is durable by the store's own measure.
#[async_trait]
pub trait GuardedStore: Debug + Send + Sync + 'static {
    /// The record, if there is one.
    async fn read(&self, key: &Key) -> Result<Option<Record>>;

    /// Writes unless a higher token has written before.
    async fn write_fenced(&self, key: &Key, value: &[u8], pass: &Pass) -> Result<Fenced>;

    /// Writes if the record is still of this version; for `None`, if there is no record. The highest token stays.
    async fn write_if(&self, key: &Key, value: &[u8], version: Option<Version>) -> Result<Checked>;
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
/// # Ok::<(), leasehold::Error>(()) });
/// # fn tokio_test(work: impl Future<Output = leasehold::Result<()>>) {
/// #     tokio::runtime::Runtime::new().unwrap().block_on(work).unwrap();
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Store {
    records: Arc<dyn GuardedStore>,
    location: Arc<str>,
}

impl Store {
    /// The store that was made by hand, and how to call it in messages.
    pub fn new(records: Arc<dyn GuardedStore>, location: impl Into<Arc<str>>) -> Self {
        Self {
            records,
            location: location.into(),
        }
    }

    /// The record, if there is one.
    pub async fn read(&self, key: impl AsRef<str>) -> Result<Option<Record>> {
        let key = Key::new(key)?;
        let read = self.records.read(&key).await;
        read.map_err(|error| self.place(error, "read a record"))
    }

    /// Writes unless a higher token has written before. Equal tokens may write again: it is the same holder.
    ///
    /// The pass is a [`Lease`](crate::Lease), or a token alone; the lease's lock is then remembered, and the tokens of other
    /// locks are refused with an error.
    pub async fn write_fenced(
        &self,
        key: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        pass: impl Into<Pass>,
    ) -> Result<Fenced> {
        let (key, value) = (Key::new(key)?, check_size(value.as_ref())?);
        let written = self.records.write_fenced(&key, value, &pass.into()).await;
        written.map_err(|error| self.place(error, "write a record"))
    }

    /// Writes if the record is still of this version; for `None`, if there is no record.
    pub async fn write_if(
        &self,
        key: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        version: Option<Version>,
    ) -> Result<Checked> {
        let (key, value) = (Key::new(key)?, check_size(value.as_ref())?);
        let written = self.records.write_if(&key, value, version).await;
        written.map_err(|error| self.place(error, "write a record"))
    }

    fn place(&self, error: Error, operation: &'static str) -> Error {
        error.during(operation, &*self.location)
    }
}

fn check_size(value: &[u8]) -> Result<&[u8]> {
    if value.len() > MAX_VALUE {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("a value of {} bytes is too large", value.len()),
        )
        .advise(format!(
            "keep it within {MAX_VALUE} bytes; store a large thing elsewhere, and here where it is"
        )));
    }
    Ok(value)
}
