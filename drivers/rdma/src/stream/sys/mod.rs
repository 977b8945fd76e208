//! The `unsafe` code of streams.

pub mod shared_words;
