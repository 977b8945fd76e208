//! Passes the streams that connectors open to the queue pairs of a listener.
//!
//! ```text
//!   connector ── Hello, with a key per queue pair ─▶ listener            the connection of the handshake
//!            ◀── Answer, with a key per queue pair ──     the queue pair waits at its key
//!            ── Join(key) ──▶ the same port                one connection per queue pair
//! ```

use crate::verbs::Endpoint;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The random key with which a stream names its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinKey(pub(crate) [u32; 3]);

impl JoinKey {
    /// Returns the key of the queue pair with these parameters.
    pub(crate) const fn of(endpoint: &Endpoint) -> Self {
        Self([endpoint.number, endpoint.psn, endpoint.qkey])
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        self.0.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// Decodes a key; `None` if the number of bytes is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<4>();
        let words: [[u8; 4]; 3] = words.try_into().ok()?;
        rest.is_empty().then(|| Self(words.map(u32::from_le_bytes)))
    }
}

/// The place where a queue pair gets its stream.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    stream: Mutex<Option<TcpStream>>,
    is_full: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    /// Passes `stream` to the queue pair. Only the first stream counts; later ones are closed.
    pub(crate) fn put(&self, stream: TcpStream) {
        if !self.is_full.load(Ordering::Acquire) {
            *lock(&self.stream) = Some(stream);
            self.is_full.store(true, Ordering::Release);
        }
    }

    /// Returns the stream once, after it has arrived. Reads only one word before that.
    pub(crate) fn take(&self) -> Option<TcpStream> {
        if !self.is_full.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.stream).take()
    }
}

/// The queue pairs of a listener that wait for their streams.
#[derive(Debug, Default)]
pub(crate) struct Joins(Mutex<Vec<(JoinKey, Weak<Mailbox>)>>);

impl Joins {
    /// Passes the stream with this key to `mailbox`.
    pub(crate) fn expect(&self, key: JoinKey, mailbox: &Arc<Mailbox>) {
        let mut waiting = lock(&self.0);
        waiting.retain(|(_, mailbox)| mailbox.strong_count() > 0);
        waiting.push((key, Arc::downgrade(mailbox)));
    }

    /// Passes `stream` to the queue pair that waits for it. A stream with an unknown key is closed.
    pub(crate) fn deliver(&self, key: JoinKey, stream: TcpStream) {
        let mut waiting = lock(&self.0);
        if let Some(at) = waiting.iter().position(|(known, _)| *known == key)
            && let Some(mailbox) = waiting.swap_remove(at).1.upgrade()
        {
            mailbox.put(stream);
        }
    }
}
