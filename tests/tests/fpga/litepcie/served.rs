//! Serves the real gateware at a socket.

use crate::litepcie::gateware::Gateware;
use daq_emulators::vfio_user::Server;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A device that serves one client after another until it is dropped.
pub struct Served {
    feed: Arc<AtomicU64>,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves a device at `path`.
    pub fn new(card: Gateware, path: &Path) -> Self {
        let feed = card.feed();
        let server = Server::bind(path).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let serve = move || {
            server
                .serve(Box::new(card), stopped.as_fd(), false)
                .unwrap();
        };
        let thread = std::thread::Builder::new().name("card".into());
        Self {
            feed,
            stop,
            thread: Some(thread.spawn(serve).unwrap()),
        }
    }

    /// Adds `words` words to the sensor's stream.
    pub fn feed(&self, words: u64) {
        self.feed.fetch_add(words, Ordering::Relaxed);
    }

    /// Removes the remaining words.
    pub fn drain(&self) {
        self.feed.store(0, Ordering::Relaxed);
    }

    /// Returns the number of remaining words.
    pub fn left(&self) -> u64 {
        self.feed.load(Ordering::Relaxed)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop.write_all(&[1]);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the card's thread panicked"
            );
        }
    }
}
