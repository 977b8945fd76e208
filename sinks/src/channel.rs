//! Channels between a sink and its helper threads.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Duration of the first wait. This duration is long enough that the thread really waits, even on a busy machine.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// Maximum time of one wait. This maximum limits the delay if a wake-up is lost.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits for the next message and returns it; returns `None` if the channel is closed and empty.
pub(crate) fn receive<T>(channel: &Receiver<T>) -> Option<T> {
    loop {
        match channel.recv_timeout(POLL_INTERVAL) {
            Ok(message) => return Some(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Waits once on an empty channel. The first wait of a thread on a channel allocates memory. This function causes that
/// allocation before frames flow.
///
/// Must be called only while no message can arrive.
pub(crate) fn wait_without_answer<T>(channel: &Receiver<T>) {
    let _ = channel.recv_timeout(FIRST_WAIT);
}

/// Starts the thread `name`, which serves `queue`. Returns when the thread can wait on the queue without allocating
/// memory.
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
    // No message is ever sent. The sender is dropped when the thread is ready, which ends this wait.
    let _ = is_ready.recv();
    Ok(thread)
}
