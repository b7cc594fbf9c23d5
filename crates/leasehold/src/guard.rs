//! The resource's side: what refuses a holder that slept past its lease.
//!
//! A lease cannot stop a process that was stopped for longer than its TTL from writing afterwards. Whatever is
//! written to can: it keeps the highest token seen and refuses lower ones, or it refuses a write that is based on an old
//! version. `docs/fencing.md` says when to use which.
//!
//! | module | what is there |
//! |---|---|
//! | [`Store`], [`GuardedStore`] | records that refuse stale writes, kept by the engine that keeps the locks (`store.rs`, `record.rs`; each engine's own part is in its folder) |
//! | [`Store::update`] | optimistic locking as a loop (`update.rs`) |
//! | [`FileStore`] | files in a folder, written through a rename (`files.rs`) |
//! | [`Fence`], [`StoredFence`] | for services that guard something themselves (`fence.rs`) |
//! | [`FenceLayer`] | the same in front of an HTTP service (`layer.rs`, feature `tower`) |
//! | [`condition`] | for the user's own items on DynamoDB: a condition in their transaction |
//! | [`sql`] | for the user's own tables: a column, a trigger, and the token in a statement |

#[allow(dead_code)] // what is used of it depends on the engines that are compiled in
pub(crate) mod by_version;
pub mod condition;
mod fence;
#[cfg(all(feature = "files", unix))]
mod files;
#[cfg(all(feature = "files", unix))]
mod folder;
#[cfg(feature = "tower")]
mod layer;
mod memory;
#[allow(dead_code)] // as above
pub(crate) mod optimistic;
mod record;
pub mod sql;
mod store;
mod update;

pub use fence::{Admission, Fence, Fencing, StoredFence};
#[cfg(all(feature = "files", unix))]
pub use files::FileStore;
#[cfg(feature = "tower")]
pub use layer::{FenceLayer, FenceService};
pub(crate) use memory::MemoryStore;
pub use record::{Checked, Content, Fenced, Key, Pass, Record, Version};
#[allow(unused_imports)] // which of them are used depends on the engines that are compiled in
pub(crate) use record::{Stamp, ends_at, other_lock};
pub(crate) use store::Slot;
#[allow(unused_imports)] // as above
pub(crate) use store::{AtomicStore, Decide};
pub use store::{GuardedStore, MAX_VALUE, REMEMBER_DELETED, Store};
pub(crate) use update::DEFAULT_LIMIT as UPDATE_LIMIT;
pub use update::Updated;
