//! Models of the algorithms, searched state by state.

mod cas;
mod handover;
mod redlock;
