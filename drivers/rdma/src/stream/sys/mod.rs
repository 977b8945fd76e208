//! What needs `unsafe`.

pub mod area;
