//! Handles: numbers that stand for what the driver made.

use super::lock;
use crate::code::{INVALID_HANDLE, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What the driver made of one kind, by handle. No two kinds have a handle in common.
#[derive(Debug)]
pub struct Table<T>(Mutex<BTreeMap<usize, Arc<T>>>);

impl<T> Table<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub fn insert(&self, value: Arc<T>) -> usize {
        /// Handles look like pointers and lead nowhere.
        static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        lock(&self.0).insert(handle, value);
        handle
    }

    pub fn get(&self, handle: usize) -> Result<Arc<T>> {
        lock(&self.0).get(&handle).cloned().ok_or(INVALID_HANDLE)
    }

    pub fn remove(&self, handle: usize) -> Result<Arc<T>> {
        lock(&self.0).remove(&handle).ok_or(INVALID_HANDLE)
    }

    /// Removes all that are `meant`.
    pub fn take(&self, meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        lock(&self.0)
            .extract_if(.., |_, value| meant(value))
            .map(|(_, value)| value)
            .collect()
    }

    /// All that are there.
    pub fn all(&self) -> Vec<Arc<T>> {
        lock(&self.0).values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }
}
