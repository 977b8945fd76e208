//! What needs `unsafe`.

pub mod shared_words;
