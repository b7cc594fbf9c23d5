//! Ids that are unique by construction: a number that nobody else was given, and a secret.
//!
//! An id has 128 bits: 48 of the number, 80 random ones. The number makes it unique; numbers are reserved from a guarded record in
//! blocks, so that most ids cost no request. The random bits make it unguessable, and keep it unique even if the record is lost
//! or restored from an old backup.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use crate::claim::{ClaimId, ClaimIds, fill_with_random};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Key, Slot, Store, UPDATE_LIMIT};
use crate::locks::Locks;
use crate::name::LockName;
use crate::sync::Mutex;

/// The first block; each that is used up before the next has come doubles it.
const FIRST_BLOCK: u64 = 256;
const LARGEST_BLOCK: u64 = 65_536;

/// Numbers have 48 bits.
const NUMBERS: u64 = 1 << 48;

impl Locks {
    /// A pool of ids, shared by all who use the same name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::Unsupported`] if the engine keeps no guarded records: the pool can then be kept
    /// elsewhere, with [`IdPool::new`].
    pub fn id_pool(&self, name: impl AsRef<str>) -> Result<IdPool> {
        IdPool::new(self.store()?, name)
    }
}

/// Hands out ids that are unique among all pools of the same name, in all processes, for ever; a crash wastes numbers, and never
/// repeats one. Cheap to clone; clones share their blocks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Locks::connect("memory:").await?;
/// let pool = locks.id_pool("orders")?;
/// assert_ne!(pool.next().await?, pool.next().await?);
///
/// // Claims signed from the pool, instead of with 128 random bits each:
/// let lease = locks.ids_from(&pool).lock("a").acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct IdPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The next number that nobody has. Kept for ever: without it, numbers would be given out again.
    numbers: Slot,
    /// Held for nanoseconds and never across an await, so a std Mutex.
    stock: Mutex<Stock>,
    /// Whoever refills holds this; the others wait for it to be done.
    refilling: tokio::sync::Mutex<()>,
}

#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Default)]
struct Stock {
    blocks: VecDeque<Range<u64>>,
    /// How large the next is.
    block: u64,
    refills: u64,
    being_refilled: bool,
}

impl IdPool {
    /// A pool in this store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`] if the name cannot be used.
    pub fn new(store: Store, name: impl AsRef<str>) -> Result<Self> {
        Ok(Self(Arc::new(Shared {
            numbers: store.at(Key::beside(&LockName::new(name)?, "ids")),
            stock: Mutex::default(),
            refilling: tokio::sync::Mutex::default(),
        })))
    }

    /// The next id; asks the engine only if the pool is empty.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::EngineUnfit`] if the pool's record is unusable or its numbers are used up; [`ErrorKind::TimedOut`] if others
    /// changed the record for 10 seconds on end; and the [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a block of numbers may have been reserved for nothing. None is given twice.
    pub async fn next(&self) -> Result<ClaimId> {
        loop {
            // Not within the `if let`, where the guard would live on.
            let there = self.0.stock.lock().take();
            if let Some(number) = there {
                self.refill_in_background();
                return id(number);
            }
            self.0.refill().await?;
        }
    }

    /// So many ids at once, usually with at most one update of the pool's record.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Self::next). The ids taken before are not given again.
    ///
    /// # Cancel safety
    ///
    /// That of [`next`](Self::next): the ids taken before are not given again.
    pub async fn take(&self, count: usize) -> Result<Vec<ClaimId>> {
        let missing = (count as u64).saturating_sub(self.0.stock.lock().left());
        if missing > 0 {
            self.0.reserve(missing).await?;
        }
        let mut ids = Vec::new();
        while ids.len() < count {
            let there = self.0.stock.lock().take();
            ids.push(match there {
                Some(number) => id(number)?,
                // Others were quicker.
                None => self.next().await?,
            });
        }
        Ok(ids)
    }

    /// How often blocks were reserved so far: each takes a read and a write.
    pub fn refills(&self) -> u64 {
        self.0.stock.lock().refills
    }

    /// Below half a block the next is reserved ahead of need.
    fn refill_in_background(&self) {
        {
            let mut stock = self.0.stock.lock();
            if stock.being_refilled || stock.left() > stock.block / 2 {
                return;
            }
            stock.being_refilled = true;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let shared = Arc::clone(&self.0);
        runtime.spawn(async move {
            let _alone = shared.refilling.lock().await;
            // If it fails, whoever finds the pool empty gets the error.
            let block = shared.stock.lock().block;
            if shared.reserve(block).await.is_err() {
                shared.stock.lock().being_refilled = false;
            }
        });
    }
}

#[async_trait]
impl ClaimIds for IdPool {
    async fn next(&self) -> Result<ClaimId> {
        IdPool::next(self).await
    }
}

impl Locks {
    /// A handle whose claims are signed with ids from a pool, instead of 128 random bits each.
    pub fn ids_from(&self, pool: &IdPool) -> Self {
        self.with_ids(Arc::new(pool.clone()))
    }
}

impl Shared {
    /// Refills for those who find it empty.
    async fn refill(&self) -> Result<()> {
        let _alone = self.refilling.lock().await;
        let block = {
            let mut stock = self.stock.lock();
            if stock.left() > 0 {
                // Another has done it meanwhile.
                return Ok(());
            }
            // Found empty, so it is emptied faster than it is refilled.
            stock.block = (stock.block * 2).clamp(FIRST_BLOCK, LARGEST_BLOCK);
            stock.block
        };
        self.reserve(block).await
    }

    /// Reserves a block of numbers. If the answer is lost the block is never used.
    async fn reserve(&self, size: u64) -> Result<()> {
        let mut reserved = Ok(0..0);
        self.numbers
            .update(UPDATE_LIMIT, None, |old| {
                reserved = block_after(old, size);
                match (&reserved, old) {
                    (Ok(block), _) => block.end.to_string().into_bytes(),
                    (Err(_), old) => old.unwrap_or_default().to_vec(),
                }
            })
            .await?;
        let block = reserved?;
        self.stock.lock().add(block);
        Ok(())
    }
}

/// The next numbers that nobody has.
fn block_after(record: Option<&[u8]>, size: u64) -> Result<Range<u64>> {
    let start: u64 = match record {
        None => 0,
        Some(text) => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::EngineUnfit,
                    "the record is not one of an id pool",
                )
                .advise("see who else writes leasehold's own records, or use another name")
            })?,
    };
    match start.checked_add(size) {
        Some(end) if end <= NUMBERS => Ok(start..end),
        _ => Err(Error::new(
            ErrorKind::EngineUnfit,
            "the pool has given out all of its 2^48 numbers",
        )
        .advise("use another name")),
    }
}

impl Stock {
    fn left(&self) -> u64 {
        self.blocks
            .iter()
            .map(|block| block.end - block.start)
            .sum()
    }

    fn add(&mut self, block: Range<u64>) {
        self.refills += 1;
        self.being_refilled = false;
        self.blocks.push_back(block);
    }

    fn take(&mut self) -> Option<u64> {
        while let Some(block) = self.blocks.front_mut() {
            match block.next() {
                None => self.blocks.pop_front(),
                number => return number,
            };
        }
        None
    }
}

/// The id with this number. The secret is drawn for each: one drawn ahead would be given out twice, with the same number, by a virtual machine
/// or a process that is cloned, and a claim with the id of another is granted what that one holds.
fn id(number: u64) -> Result<ClaimId> {
    let mut bits = [0; 16];
    bits[..6].copy_from_slice(&number.to_be_bytes()[2..]);
    fill_with_random(&mut bits[6..])?;
    Ok(ClaimId::from_bytes(bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    async fn pool(store: &Store) -> IdPool {
        IdPool::new(store.clone(), "x").unwrap()
    }

    #[tokio::test]
    async fn pools_of_one_name_never_give_the_same_number() {
        let locks = Locks::connect("memory:").await.unwrap();
        let store = locks.store().unwrap();
        let (mut numbers, mut secrets) = (HashSet::new(), HashSet::new());
        let mut take = |id: ClaimId| {
            assert!(numbers.insert(id.as_bytes()[..6].to_vec()), "repeated");
            assert!(secrets.insert(id.as_bytes()[6..].to_vec()), "guessable");
        };
        // Each ends as a crash ends it: with most of its block unused.
        for round in 0..20 {
            let (one, two) = (pool(&store).await, pool(&store).await);
            for _ in 0..round * 40 {
                take(one.next().await.unwrap());
                take(two.clone().next().await.unwrap());
            }
            two.take(100).await.unwrap().into_iter().for_each(&mut take);
        }
    }

    /// A virtual machine that was restored twice from one snapshot, or a process that was.
    #[tokio::test]
    async fn clones_of_a_process_have_different_ids() {
        let locks = Locks::connect("memory:").await.unwrap();
        let pool = pool(&locks.store().unwrap()).await;
        pool.next().await.unwrap();
        let clone = IdPool(Arc::new(Shared {
            numbers: pool.0.numbers.clone(),
            stock: Mutex::new(pool.0.stock.lock().clone()),
            refilling: tokio::sync::Mutex::default(),
        }));
        for _ in 0..100 {
            assert_ne!(pool.next().await.unwrap(), clone.next().await.unwrap());
        }
        let [ours, theirs] = [pool.take(100).await, clone.take(100).await];
        let ours: HashSet<_> = ours.unwrap().into_iter().collect();
        assert!(theirs.unwrap().iter().all(|id| !ours.contains(id)));
    }

    #[tokio::test]
    async fn few_requests_for_many_ids() {
        let locks = Locks::connect("memory:").await.unwrap();
        let pool = pool(&locks.store().unwrap()).await;
        for _ in 0..1_000_000 {
            pool.next().await.unwrap();
        }
        assert!(pool.refills() < 100, "{}", pool.refills());
        let few = self::pool(&locks.store().unwrap()).await;
        assert_eq!(few.take(1000).await.unwrap().len(), 1000);
        assert_eq!(few.refills(), 1);
    }

    #[test]
    fn the_numbers_end_with_an_error() {
        assert_eq!(block_after(None, 5).unwrap(), 0..5);
        assert_eq!(block_after(Some(b"7"), 5).unwrap(), 7..12);
        let end = NUMBERS.to_string();
        for bad in [end.as_str(), "18446744073709551615", "", "x", "-1"] {
            assert!(block_after(Some(bad.as_bytes()), 1).is_err(), "{bad}");
        }
    }
}
