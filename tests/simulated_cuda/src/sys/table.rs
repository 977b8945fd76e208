//! Tables of handles: numbers that identify the driver's objects.

use super::lock;
use crate::code::{INVALID_HANDLE, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The objects of one type, by handle. Objects of different types never have the same handle.
#[derive(Debug)]
pub struct Table<T>(Mutex<BTreeMap<usize, Arc<T>>>);

impl<T> Table<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub fn insert(&self, value: Arc<T>) -> usize {
        /// Handles look like pointers but do not refer to memory.
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

    /// Returns all objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        lock(&self.0).values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }
}
