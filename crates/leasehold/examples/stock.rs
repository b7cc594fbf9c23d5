//! Optimistic locking, as in `UPDATE … SET stock = stock - n WHERE id = … AND version = …`: many sell from one stock, and none
//! is sold twice.
//!
//! ```text
//! cargo run -p leasehold --example stock [URL]
//! ```

#![allow(clippy::expect_used)]

use leasehold::Locks;
use leasehold::guard::Checked;

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "memory:".to_owned());
    let store = Locks::connect(url).await?.store()?;
    let item = format!("stock/{:x}", fastrand::u64(..));
    store.write_if(&item, "100", None).await?;

    let mut sellers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, item) = (store.clone(), item.clone());
        sellers.spawn(async move {
            let mut sold = 0;
            while sell(&store, &item, 3).await? {
                sold += 3;
            }
            Ok::<u32, leasehold::Error>(sold)
        });
    }
    let mut sold = 0;
    while let Some(seller) = sellers.join_next().await {
        sold += seller.expect("a seller does not panic")?;
    }
    let left = store.read(&item).await?.map(|record| record.value);
    let left = String::from_utf8_lossy(&left.unwrap_or_default()).into_owned();
    println!("sold {sold}, left {left}");
    assert_eq!(sold.to_string() + &left, "991");
    Ok(())
}

/// Sells so many, unless there are too few: read, decide, and write only if nobody has sold in between.
async fn sell(store: &leasehold::guard::Store, item: &str, wanted: u32) -> leasehold::Result<bool> {
    loop {
        let record = store.read(item).await?.expect("the item is there");
        let stock: u32 = String::from_utf8_lossy(&record.value).parse().unwrap_or(0);
        let Some(left) = stock.checked_sub(wanted) else {
            return Ok(false);
        };
        let written = store.write_if(item, left.to_string(), Some(record.version));
        if let Checked::Written { .. } = written.await? {
            return Ok(true);
        }
    }
}
