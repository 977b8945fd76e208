//! A bounded queue of messages for stderr.

use super::screen::Screen;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of bytes of queued messages.
pub(super) const CAPACITY: usize = 256 << 10;

/// A bounded queue of messages, and the latest live block. The lock is not held while a thread writes to stderr.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Notified when a message or a live block is added.
    filled: Condvar,
    /// Notified after each write, successful or failed.
    written: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct State {
    messages: Vec<u8>,
    /// Number of messages in `messages`.
    count: u64,
    /// The live block, if it has not been drawn yet.
    block: Option<Vec<String>>,
    /// Number of dropped messages that have not been reported on stderr yet.
    unreported: u64,
    is_writing: bool,
    /// Number of successful writes.
    progress: u64,
    /// The value of `progress` when a flush timed out.
    stuck_at: Option<u64>,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                messages: Vec::new(),
                count: 0,
                block: None,
                unreported: 0,
                is_writing: false,
                progress: 0,
                stuck_at: None,
            }),
            filled: Condvar::new(),
            written: Condvar::new(),
            dropped: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of messages dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Queues one message. If the queue is full, drops and counts the message.
    pub(super) fn push(&self, message: &[u8]) {
        let mut state = self.lock();
        if state.messages.len() + message.len() > CAPACITY {
            self.drop_messages(&mut state, 1);
            return;
        }
        state.messages.extend_from_slice(message);
        state.count += 1;
        drop(state);
        self.filled.notify_one();
    }

    fn drop_messages(&self, state: &mut State, count: u64) {
        state.unreported += count;
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Replaces the live block.
    pub(super) fn show(&self, lines: Vec<String>) {
        self.lock().block = Some(lines);
        self.filled.notify_one();
    }

    /// Waits until the queue is empty, or until nothing was written for `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let mut state = self.lock();
        while !state.is_idle() && state.stuck_at != Some(state.progress) {
            let before = state.progress;
            let (next, waited) = self
                .written
                .wait_timeout(state, timeout)
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() && state.progress == before {
                state.stuck_at = Some(before);
            }
        }
    }

    /// Writes queued messages and live blocks; never returns. `write` receives the text and a function that it must
    /// call after each successful write. `size` returns the columns and rows of the terminal.
    pub(super) fn run(
        &self,
        write: impl Fn(&[u8], &dyn Fn()) -> io::Result<()>,
        size: impl Fn() -> (u16, u16),
    ) {
        let mut screen = Screen::default();
        let mut messages = Vec::new();
        loop {
            let (block, count, unreported) = self.take(&mut messages);
            let text = screen.compose(&messages, block, size());
            let result = write(&text, &|| {
                self.lock().progress += 1;
                self.written.notify_all();
            });
            match result {
                Ok(()) if unreported > 0 => tracing::warn!(
                    "{unreported} log messages were dropped because stderr was not read or failed"
                ),
                Ok(()) => {}
                Err(_) => {
                    let mut state = self.lock();
                    self.drop_messages(&mut state, count);
                    state.unreported += unreported;
                }
            }
        }
    }

    /// Waits until the queue contains a message or a live block, then removes everything from the queue.
    fn take(&self, messages: &mut Vec<u8>) -> (Option<Vec<String>>, u64, u64) {
        messages.clear();
        let mut state = self.lock();
        state.is_writing = false;
        self.written.notify_all();
        while !state.has_work() {
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.is_writing = true;
        std::mem::swap(&mut state.messages, messages);
        let count = std::mem::take(&mut state.count);
        let unreported = std::mem::take(&mut state.unreported);
        (state.block.take(), count, unreported)
    }
}

impl State {
    const fn has_work(&self) -> bool {
        !self.messages.is_empty() || self.block.is_some()
    }

    const fn is_idle(&self) -> bool {
        !self.has_work() && !self.is_writing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::mpsc;

    /// Returns a queue and the other end of the socket that its writer thread writes to.
    fn queue() -> (Arc<Queue>, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let queue = Arc::new(Queue::new());
        let running = queue.clone();
        std::thread::spawn(move || {
            running.run(
                |text, progress| super::super::write_all(&near, text, progress),
                || (80, 24),
            );
        });
        (queue, far)
    }

    #[test]
    fn messages_are_written_completely_and_in_order() {
        let (queue, mut far) = queue();
        let mut wanted = String::new();
        for i in 0..100 {
            let line = format!("line {i}\n");
            queue.push(line.as_bytes());
            wanted += &line;
        }
        let mut got = vec![0; wanted.len()];
        far.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), wanted);
        queue.flush(Duration::from_mins(1));
        assert!(queue.lock().is_idle());
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn unread_stderr_uses_bounded_memory_and_counts_dropped_messages() {
        let (queue, mut far) = queue();
        let line = [b'x'; 1023]
            .iter()
            .chain(b"\n")
            .copied()
            .collect::<Vec<u8>>();
        let mut pushed = 0;
        // Push more than the socket and the queue can hold.
        while queue.dropped() < 100 {
            queue.push(&line);
            pushed += 1;
            assert!(queue.lock().messages.capacity() <= 2 * CAPACITY);
        }
        queue.flush(Duration::from_millis(10));
        assert!(!queue.lock().is_idle(), "the socket is not read");
        let kept = pushed - queue.dropped();
        let mut read = vec![0; line.len()];
        for _ in 0..kept {
            far.read_exact(&mut read).unwrap();
            assert_eq!(read, line);
        }
        queue.flush(Duration::from_mins(1));
        assert!(queue.lock().is_idle());
    }

    #[test]
    fn messages_for_closed_stderr_are_counted() {
        let (queue, far) = queue();
        drop(far);
        for _ in 0..10 {
            queue.push(b"line\n");
        }
        queue.flush(Duration::from_mins(1));
        assert_eq!((queue.dropped(), queue.lock().unreported), (10, 10));
    }

    #[test]
    fn blocked_writer_keeps_only_newest_block() {
        let queue = Arc::new(Queue::new());
        let (release, released) = mpsc::channel::<()>();
        let (sender, texts) = mpsc::channel();
        let running = queue.clone();
        std::thread::spawn(move || {
            running.run(
                |text, _| {
                    sender
                        .send(String::from_utf8(text.to_vec()).unwrap())
                        .unwrap();
                    released.recv().map_err(io::Error::other)
                },
                || (80, 24),
            );
        });
        queue.push(b"log\n");
        assert_eq!(texts.recv().unwrap(), "log\n");
        for i in 0..100 {
            queue.show(vec![format!("block {i}")]);
        }
        release.send(()).unwrap();
        assert_eq!(texts.recv().unwrap(), "block 99\n");
    }
}
