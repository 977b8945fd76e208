//! Notifications to systemd: readiness, a status line, and a watchdog that depends on the data threads.
//!
//! Without `NOTIFY_SOCKET` in the environment, nothing is sent and no thread is started. Notifications never block or
//! fail a run: if the socket is full, readiness is sent later and other messages are dropped; other failures are
//! logged.

use crate::http::{Health, HealthFn};
use daq_core::ledger::Report;
use daq_core::log_limit::LogLimit;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Message to systemd: every source has started.
pub const READY: &str = "READY=1";
/// Message to systemd: the pipeline is draining and then ends.
pub const STOPPING: &str = "STOPPING=1";

/// Whether a service manager is listening.
pub fn present() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Sends one status line, which `systemctl status` shows; see [`status_line`].
pub fn status(line: &str) {
    // A line feed would start another assignment in the message.
    send(&format!("STATUS={}", line.replace(['\n', '\r'], " ")));
}

/// Sends one assignment, for example `READY=1`, without blocking. Returns false only if the socket is full; the caller
/// must retry later.
pub fn send(state: &str) -> bool {
    static LIMIT: LogLimit = LogLimit::new();
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
        return true;
    };
    let Err(error) = send_to(&address, &format!("{state}\n")) else {
        return true;
    };
    LIMIT.run(|suppressed| {
        tracing::warn!(
            "cannot notify systemd: {}: {error}{suppressed}",
            address.display()
        );
    });
    error.kind() != io::ErrorKind::WouldBlock
}

fn send_to(address: &OsStr, message: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match address.as_bytes() {
        [b'@', name @ ..] => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        _ => socket.connect(address)?,
    }
    socket.send(message.as_bytes()).map(drop)
}

/// Returns the period of the watchdog from `WATCHDOG_USEC`, unless `WATCHDOG_PID` names another process.
fn watchdog_period() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = std::env::var_os("WATCHDOG_PID").is_none()
        || number("WATCHDOG_PID") == Some(u64::from(std::process::id()));
    let period = Duration::from_micros(number("WATCHDOG_USEC").filter(|_| is_ours)?);
    (!period.is_zero()).then_some(period)
}

/// Returns a status line with the total rate of all sources since `before`, the loss state, and the sinks that accept
/// no frames.
///
/// ```
/// use daq_core::ledger::{Report, SourceReport};
/// use daq_pipelines::systemd::status_line;
/// let mut now = Report { seconds: 2.0, ..Report::default() };
/// let source = SourceReport { expected: 4, delivered: 3, lost: [("late", 1)].into(), bytes: 1000, ..Default::default() };
/// now.sources.insert("adc".to_owned(), source);
/// assert_eq!(status_line(&now, &Report::default()), "4 kbit/s, lost 1 of 4 packets (late 1)");
/// ```
pub fn status_line(now: &Report, before: &Report) -> String {
    let bytes = |report: &Report| {
        report
            .sources
            .values()
            .map(|source| source.bytes)
            .sum::<u64>()
    };
    let seconds = now.seconds - before.seconds;
    let bits = bytes(now).saturating_sub(bytes(before)) as f64 * 8.0;
    let rate = if seconds > 0.0 { bits / seconds } else { 0.0 };
    let mut parts = vec![shown_rate(rate), now.loss().to_string()];
    let full = now.sinks.iter().filter(|(_, sink)| sink.full);
    parts.extend(full.map(|(name, _)| format!("{name}: accepts no frames")));
    parts.join(", ")
}

/// Formats a rate of `bits` per second with three significant digits, because further digits change too fast to read.
pub fn shown_rate(bits: f64) -> String {
    let units = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
    let (mut scaled, mut unit) = (bits.max(0.0), 0);
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    let text = match scaled {
        99.95.. => format!("{scaled:.0}"),
        9.995.. => format!("{scaled:.1}"),
        _ => format!("{scaled:.2}"),
    };
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text} {}", units[unit])
}

/// A thread that notifies systemd's watchdog while every data thread makes progress. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread if `WATCHDOG_USEC` is set. The thread notifies systemd twice per watchdog period.
    pub fn start(health: HealthFn) -> Option<Self> {
        if !present() {
            return None;
        }
        let period = watchdog_period()?;
        let (stop, stopped) = mpsc::channel::<()>();
        let answer = move || {
            let mut previous = Health::default();
            loop {
                let now = health();
                if now.advances() {
                    send("WATCHDOG=1");
                } else if previous.stalled != now.stalled {
                    let names = now.stalled.join(", ");
                    tracing::error!(
                        stalled = names,
                        "data threads make no progress, so the systemd watchdog is not notified; systemd stops the \
                         service after the watchdog timeout"
                    );
                    status(&format!("stalled: {names}"));
                }
                previous = now;
                match stopped.recv_timeout(period / 2) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        match std::thread::Builder::new()
            .name("daq-watchdog".to_owned())
            .spawn(answer)
        {
            Ok(thread) => Some(Self {
                stop: Some(stop),
                thread: Some(thread),
            }),
            Err(error) => {
                tracing::error!(%error, "cannot start the watchdog thread; systemd will stop this service");
                None
            }
        }
    }

    /// Returns the watchdog period that systemd requested; `None` if it requested no watchdog.
    pub fn period() -> Option<Duration> {
        watchdog_period()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the watchdog thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::ledger::{EngineReport, ReaderReport, SinkReport, SourceReport};
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Runs the ignored test `name` in a child process with systemd's environment variables. Returns the messages that
    /// the socket received.
    fn notifications(name: &str, watchdog: Option<&str>) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "--exact", &format!("systemd::tests::{name}")]);
        child
            .env("NOTIFY_SOCKET", &path)
            .env_remove("WATCHDOG_PID")
            .env_remove("WATCHDOG_USEC");
        if let Some(period) = watchdog {
            child.env("WATCHDOG_USEC", period);
        }
        // Read the socket while the child runs, because the socket's queue is short.
        let child = child
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let reader = std::thread::spawn(move || {
            let mut messages = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
                if message == "END" {
                    break;
                }
                messages.push(message);
            }
            messages
        });
        let output = child.wait_with_output().unwrap();
        UnixDatagram::unbound()
            .unwrap()
            .send_to(b"END", &path)
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && stdout.contains("1 passed"),
            "{stdout}"
        );
        reader.join().unwrap()
    }

    #[test]
    fn systemd_is_notified_of_run() {
        assert_eq!(
            notifications("child_process_notifies_run", None),
            ["READY=1\n", "STATUS=1 Gbit/s, a b\n", "STOPPING=1\n"]
        );
    }

    #[test]
    #[ignore = "run by systemd_is_notified_of_run"]
    fn child_process_notifies_run() {
        assert!(present());
        assert!(send(READY));
        status("1 Gbit/s, a\nb");
        assert!(send(STOPPING));
        assert!(
            Watchdog::start(Arc::new(Health::default)).is_none(),
            "systemd did not request a watchdog"
        );
    }

    #[test]
    fn watchdog_is_notified_until_thread_stalls() {
        let messages = notifications("child_process_stalls", Some("20000"));
        let stalled = messages
            .iter()
            .position(|message| message == "STATUS=stalled: source adc\n")
            .unwrap();
        assert!(stalled >= 3, "{messages:?}");
        assert!(
            messages[..stalled]
                .iter()
                .all(|message| message == "WATCHDOG=1\n"),
            "{messages:?}"
        );
        assert_eq!(
            messages[stalled + 1..],
            ["STATUS=asked again\n"],
            "systemd must get no notification during the stall, and the stall must be logged once"
        );
    }

    #[test]
    #[ignore = "run by watchdog_is_notified_until_thread_stalls"]
    fn child_process_stalls() {
        let (asked, again) = mpsc::channel();
        let stall = Arc::new(AtomicBool::new(false));
        let stalled = stall.clone();
        let health: HealthFn = Arc::new(move || {
            let mut health = Health {
                ready: true,
                ..Health::default()
            };
            if stalled.load(Ordering::SeqCst) {
                health.stalled.push("source adc".to_owned());
            }
            let _ = asked.send(());
            health
        });
        assert_eq!(Watchdog::period(), Some(Duration::from_millis(20)));
        let watchdog = Watchdog::start(health).expect("systemd requested a watchdog");
        for _ in 0..3 {
            again.recv().unwrap();
        }
        // The next call may have begun before the stall is visible, so wait for three more calls after it.
        stall.store(true, Ordering::SeqCst);
        for _ in 0..4 {
            again.recv().unwrap();
        }
        drop(watchdog);
        status("asked again");
    }

    #[test]
    fn missing_notify_socket_sends_nothing() {
        if present() {
            eprintln!("skipped: NOTIFY_SOCKET is set for this test itself");
            return;
        }
        assert!(send(READY));
        status("x");
        assert!(Watchdog::start(Arc::new(Health::default)).is_none());
    }

    #[test]
    fn status_line_has_rate_and_loss() {
        let mut before = Report {
            seconds: 10.0,
            ..Report::default()
        };
        let source = SourceReport {
            expected: 10,
            delivered: 10,
            bytes: 1000,
            ..SourceReport::default()
        };
        before.sources.insert("adc".to_owned(), source.clone());
        before.sources.insert("ref".to_owned(), source);
        assert_eq!(
            status_line(&before, &before),
            "0 bit/s, no loss in 20 packets"
        );
        let mut now = before.clone();
        now.seconds = 12.0;
        let adc = now.sources.get_mut("adc").unwrap();
        (adc.expected, adc.bytes) = (13, 1000 + 308_641_975);
        adc.lost = [("wire_gap", 1), ("late", 2)].into();
        assert_eq!(
            status_line(&now, &before),
            "1.23 Gbit/s, lost 3 of 23 packets (late 2, wire_gap 1)"
        );
        now.readers.insert(
            "view".to_owned(),
            ReaderReport {
                overrun: 5,
                ..ReaderReport::default()
            },
        );
        now.sinks.insert(
            "disk".to_owned(),
            SinkReport {
                full: true,
                dropped: 6,
                ..SinkReport::default()
            },
        );
        let line = status_line(&now, &before);
        assert!(
            line.ends_with(", 5 frames overrun, 6 frames not written, disk: accepts no frames"),
            "{line}"
        );
    }

    #[test]
    fn status_line_has_partial_frames() {
        let source = SourceReport {
            expected: 7,
            delivered: 7,
            incomplete: 2,
            engine: Some(EngineReport::default()),
            ..SourceReport::default()
        };
        let mut now = Report::default();
        now.sources.insert("camera".to_owned(), source);
        assert_eq!(
            status_line(&now, &now),
            "0 bit/s, lost 0 of 7 frames, 2 frames incomplete"
        );
    }

    #[test]
    fn status_line_rate_has_three_digits() {
        for (rate, shown) in [
            (0.0, "0 bit/s"),
            (0.125, "0.12 bit/s"),
            (1.0, "1 bit/s"),
            (1234.0, "1.23 kbit/s"),
            (99_960.0, "100 kbit/s"),
            (999.6e6, "1 Gbit/s"),
            (12_345e6, "12.3 Gbit/s"),
            (67_108_864_000.0, "67.1 Gbit/s"),
            (500e9, "500 Gbit/s"),
        ] {
            assert_eq!(shown_rate(rate), shown);
        }
    }

    /// Returns the path of a copy of the template unit, whose program exists, and its temporary directory.
    fn unit() -> (tempfile::TempDir, String) {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../configs/systemd/daq@.service"
        );
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("\nType=notify\n") && text.contains("\nWatchdogSec="));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daq@.service");
        std::fs::write(&path, text.replace("/usr/local/bin/daq", "/bin/true")).unwrap();
        let name = path.to_str().unwrap().to_owned();
        (dir, name)
    }

    fn analyze(arguments: &[&str], unit: &str) {
        match Command::new("systemd-analyze")
            .args(arguments)
            .arg(unit)
            .output()
        {
            Err(error) => eprintln!("skipped: systemd-analyze does not start: {error}"),
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                if [
                    "unrecognized option",
                    "Unknown command",
                    "Failed to initialize manager",
                ]
                .iter()
                .any(|reason| stderr.contains(reason))
                {
                    eprintln!("skipped: this systemd-analyze cannot do {arguments:?}: {stderr}");
                    return;
                }
                let stdout = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success(), "{arguments:?}: {stdout}{stderr}");
                // systemd logs and then ignores an unknown key or value, so the log must not name the unit.
                assert!(!stderr.contains(unit), "{stderr}");
            }
        }
    }

    #[test]
    fn unit_file_is_valid() {
        let (_dir, unit) = unit();
        analyze(&["verify", "--man=no"], &unit.replace("daq@", "daq@adc"));
        analyze(&["verify", "--man=no"], &unit);
    }

    #[test]
    fn unit_file_exposure_is_low() {
        let (_dir, unit) = unit();
        // The exposure level is between 0 and 10; `--threshold` is in tenths.
        analyze(
            &["security", "--offline=true", "--threshold=20", "--no-pager"],
            &unit,
        );
    }
}
