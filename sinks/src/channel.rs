//! Channels between a sink and its helper threads.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Long enough to really wait, even on a busy machine.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// How often a waiting thread polls the channel, in case that a wake-up was lost.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The next message; `None` when the channel is closed and empty.
pub(crate) fn receive<T>(channel: &Receiver<T>) -> Option<T> {
    loop {
        match channel.recv_timeout(POLL_INTERVAL) {
            Ok(message) => return Some(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Waits at `channel` in vain: the first wait of a thread at a channel allocates, and is better had before frames flow.
///
/// Only while nothing can be sent to it.
pub(crate) fn wait_without_answer<T>(channel: &Receiver<T>) {
    let _ = channel.recv_timeout(FIRST_WAIT);
}

/// Starts thread `name`, which serves `queue`, and returns when it is ready to wait there without allocating.
pub(crate) fn spawn_server<T: Send + 'static>(
    name: &str,
    queue: Receiver<T>,
    serve: impl FnOnce(Receiver<T>) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let (ready, is_ready) = sync_channel::<()>(1);
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            wait_without_answer(&queue);
            drop(ready);
            serve(queue);
        })?;
    // Nothing is ever sent: the sender goes when the thread is ready.
    let _ = is_ready.recv();
    Ok(thread)
}
