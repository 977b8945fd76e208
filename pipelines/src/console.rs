//! Writes text to stderr and stdout while a pipeline runs.
//!
//! A terminal, a pipe or a journal may stall or disappear. So only the writer thread writes to stderr. Other threads
//! put log lines into a bounded queue, and store the latest live block of the terminal next to the queue. Messages that
//! do not fit into the queue, or that cannot be written to stderr, are dropped and counted.

mod estimate;
mod journal;
mod progress;
mod queue;
mod screen;

pub use estimate::{Estimate, bar};
pub use progress::Progress;

use queue::Queue;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;
use tracing::Level;

/// Maximum time without a successful write after which a flush stops waiting.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of bytes per write. It is small, so that a slow terminal shows progress.
const CHUNK: usize = 4096;

/// Name of the writer thread.
const WRITER_NAME: &str = "daq-log";

static QUEUE: Queue = Queue::new();
/// The stdout of the process, if it is reserved.
static STDOUT: OnceLock<OwnedFd> = OnceLock::new();
/// Set once the writer thread runs.
static WRITER: OnceLock<()> = OnceLock::new();

/// Writes a line to stderr; errors are ignored. Unlike `eprintln!` it never panics, and never blocks once
/// [`start`](crate::console::start) was called.
#[macro_export]
macro_rules! print_error {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!($crate::console::Stderr, $($text)*);
    }};
}
pub use print_error;

/// A handle of stderr. Each call of `write` is one message, which is queued or dropped as a whole. The journal stores the
/// message as an error.
#[derive(Clone, Copy, Debug)]
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Prioritised(Level::ERROR).write(bytes)
    }

    /// Formats the whole message before it is queued, so that its parts are not separated by other messages.
    fn write_fmt(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.write(text.to_string().as_bytes()).map(drop)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A handle of stderr for messages of a level. If stderr is connected to the journal, each line begins with the priority
/// of the level.
#[derive(Clone, Copy, Debug)]
pub struct Prioritised(pub Level);

impl Write for Prioritised {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_journal() {
            push(&with_priority(bytes, self.0));
        } else {
            push(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the lines of `bytes`, each with the priority of `level`.
fn with_priority(bytes: &[u8], level: Level) -> Vec<u8> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let prefix = journal::priority(level).as_bytes();
    lines.flat_map(|line| [prefix, line].concat()).collect()
}

/// Queues a message for stderr.
fn push(bytes: &[u8]) {
    if WRITER.get().is_some() {
        QUEUE.push(bytes);
    } else {
        let _ = write_all(io::stderr().as_fd(), bytes, || {});
    }
}

/// Returns whether stderr is connected to the journal.
pub fn is_journal() -> bool {
    static JOURNAL: OnceLock<bool> = OnceLock::new();
    *JOURNAL.get_or_init(|| journal::is_journal(io::stderr()))
}

/// Reserves stdout for [`print()`]. What libraries write to stdout from now on, such as `printf` of a GPU, goes to stderr. If
/// that is not possible, stdout remains as it is.
pub fn reserve_stdout() {
    if STDOUT.get().is_none()
        && let Ok(stdout) = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)
        && rustix::stdio::dup2_stdout(io::stderr()).is_ok()
    {
        let _ = STDOUT.set(stdout);
    }
}

/// Returns the descriptor to which [`print()`] writes.
pub fn stdout() -> BorrowedFd<'static> {
    match STDOUT.get() {
        Some(reserved) => reserved.as_fd(),
        None => rustix::stdio::stdout(),
    }
}

/// Starts the writer thread. From then on, the writer thread also writes the messages of panics. If the thread cannot
/// start, each thread writes its own messages.
pub fn start() {
    let run = || {
        let stderr = io::stderr();
        QUEUE.run(
            |text, progress| write_all(stderr.as_fd(), text, progress),
            || crate::sys::terminal::size(stderr.as_fd()).unwrap_or((80, 24)),
        );
    };
    let thread = std::thread::Builder::new().name(WRITER_NAME.to_owned());
    if WRITER.get().is_some() || thread.spawn(run).is_err() {
        return;
    }
    let _ = WRITER.set(());
    std::panic::set_hook(Box::new(report_panic));
}

/// Writes a panic to stderr and returns only when it is written, because the process may abort afterwards.
fn report_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let backtrace = Backtrace::capture();
    let mut text = format!("thread {name} {panic}\n");
    if backtrace.status() == BacktraceStatus::Captured {
        text += &format!("{backtrace}\n");
    }
    if name == WRITER_NAME {
        // No other thread writes the queue, so this thread writes the text itself.
        let _ = write_all(io::stderr().as_fd(), text.as_bytes(), || {});
    } else {
        let _ = Stderr.write_all(text.as_bytes());
        flush();
    }
}

/// Returns whether stderr is a terminal that can redraw lines.
pub fn is_interactive() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Shows `lines` below the log and replaces the previous live block; an empty list removes the block.
pub fn show_block(lines: Vec<String>) {
    QUEUE.show(lines);
}

/// Waits until all queued messages are written. Stops waiting if nothing is written for 3 s.
pub fn flush() {
    if WRITER.get().is_some() {
        QUEUE.flush(FLUSH_TIMEOUT);
    }
}

/// Returns the number of messages that were dropped because no program read stderr or because a write to stderr failed.
pub fn dropped() -> u64 {
    QUEUE.dropped()
}

/// Writes `text` to stdout, after all queued messages are written to stderr.
///
/// # Errors If a write to stdout fails, or if nothing is written for 3 s (`TimedOut`).
pub fn print(text: String) -> io::Result<()> {
    flush();
    let (sender, progress) = mpsc::channel();
    let write = move || {
        let step = || drop(sender.send(Ok(())));
        if let Err(error) = write_all(stdout(), text.as_bytes(), step) {
            let _ = sender.send(Err(error));
        }
    };
    std::thread::Builder::new()
        .name("daq-report".to_owned())
        .spawn(write)?;
    loop {
        match progress.recv_timeout(FLUSH_TIMEOUT) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(io::ErrorKind::TimedOut.into()),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Writes `text` in chunks, and calls `progress` after each chunk.
fn write_all(fd: impl AsFd, mut text: &[u8], mut progress: impl FnMut()) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;
    while !text.is_empty() {
        match rustix::io::write(&fd, &text[..text.len().min(CHUNK)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                text = &text[count..];
                progress();
            }
            Err(Errno::INTR) => {}
            // Another process that shares the terminal or pipe has set it to non-blocking mode.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn each_line_for_the_journal_has_a_priority() {
        let lines = |level| String::from_utf8(with_priority(b"a\n  b\n", level)).unwrap();
        assert_eq!(lines(Level::ERROR), "<3>a\n<3>  b\n");
        assert_eq!(lines(Level::WARN), "<4>a\n<4>  b\n");
        assert_eq!(lines(Level::INFO), "<6>a\n<6>  b\n");
        assert_eq!(lines(Level::DEBUG), "<7>a\n<7>  b\n");
    }

    #[test]
    fn slow_non_blocking_reader_gets_all_output() {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let text: Vec<u8> = (0..1 << 20).map(|i: u32| i.to_le_bytes()[1]).collect();
        let sent = text.clone();
        let writer = std::thread::spawn(move || write_all(near, &sent, || {}));
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        writer.join().unwrap().unwrap();
        assert!(received == text);
    }

    #[test]
    fn closed_reader_is_error_without_panic() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let error = write_all(near, b"text", || {}).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn thread_panic_is_written_before_abort() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "--exact", "--nocapture"]);
        let output = child
            .arg("console::tests::child_process_panics_and_aborts")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(
            stderr.contains("thread worker panicked") && stderr.contains("the reason"),
            "{stderr}"
        );
    }

    #[test]
    #[ignore = "run by thread_panic_is_written_before_abort"]
    fn child_process_panics_and_aborts() {
        start();
        let worker = std::thread::Builder::new().name("worker".to_owned());
        let joined = worker.spawn(|| panic!("the reason")).unwrap().join();
        assert!(joined.is_err());
        std::process::abort();
    }
}
