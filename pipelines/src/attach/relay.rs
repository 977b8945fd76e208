//! Wakes clients that wait for frames.

use daq_core::ring::Ring;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Shortest time between two wake-ups of the clients of a ring.
const WAKE_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum time that the thread waits for a frame before it checks whether it must stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The same for a ring that sends no notifications.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// A thread that waits for frames of a ring while clients are attached, and wakes these clients. It works for all clients,
/// so that the producer wakes one thread and not each client.
#[derive(Debug)]
pub(super) struct Relay {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    clients: AtomicUsize,
    is_stopping: AtomicBool,
}

impl Relay {
    /// Starts the thread.
    pub(super) fn start(ring: Ring) -> io::Result<Self> {
        let state = Arc::new(State {
            ring,
            clients: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
        });
        let shared = state.clone();
        let thread = std::thread::Builder::new()
            .name("daq-attach-wake".to_owned())
            .spawn(move || shared.run())?;
        Ok(Self {
            state,
            thread: Some(thread),
        })
    }

    /// Wakes clients until the returned value is dropped.
    pub(super) fn serve(&self) -> Served {
        self.state.clients.fetch_add(1, Ordering::Release);
        self.wake_thread();
        Served(self.state.clone())
    }

    fn wake_thread(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_stopping.store(true, Ordering::Release);
        self.wake_thread();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that wakes clients panicked; this is a defect in daq");
        }
    }
}

/// A client that the thread wakes.
#[derive(Debug)]
pub(super) struct Served(Arc<State>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Release);
    }
}

impl State {
    fn run(&self) {
        let limit = if self.ring.options().single_threaded {
            POLL_INTERVAL
        } else {
            STOP_POLL_INTERVAL
        };
        let mut published = self.ring.published();
        let mut is_closed = false;
        while !self.is_stopping.load(Ordering::Acquire) {
            if is_closed || self.clients.load(Ordering::Acquire) == 0 {
                std::thread::park();
                continue;
            }
            let now = self.ring.wait(published, limit);
            is_closed = self.ring.is_closed();
            if now > published || is_closed {
                published = now;
                self.ring.wake_processes();
                std::thread::sleep(WAKE_INTERVAL);
            }
        }
    }
}
