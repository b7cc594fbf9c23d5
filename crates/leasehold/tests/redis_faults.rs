#![cfg(feature = "redis")]
