//! What systemd is told: readiness, one line of status, and a watchdog that follows the data threads.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent and no thread is started. Nothing here fails a
//! run: what cannot be sent is logged.

use crate::http::{Health, HealthFn};
use daq_core::ledger::{Report, SourceReport};
use daq_core::units::BitRate;
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Whether a service manager listens.
pub fn present() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Every source has started.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// One line that `systemctl status` shows; see [`status_line`].
pub fn status(line: &str) {
    // A line feed would begin another assignment.
    send(&[NotifyState::Status(&line.replace(['\n', '\r'], " "))]);
}

/// The pipeline drains and will end.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told: the socket in NOTIFY_SOCKET does not take messages");
    }
}

/// The status in one line: rate of all sources since `before`, what was lost, what sinks wait for space.
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
    let expected: u64 = now.sources.values().map(|source| source.expected).sum();
    let mut parts = vec![BitRate(round(rate)).to_string()];
    let lost: u64 = now.sources.values().map(SourceReport::lost_total).sum();
    let incomplete: u64 = now.sources.values().map(|source| source.incomplete).sum();
    let mut sources = now.sources.values();
    let unit = match sources.next() {
        Some(first) if sources.all(|source| source.unit() == first.unit()) => first.unit(),
        _ => "packets",
    };
    if lost == 0 {
        let nothing = if incomplete == 0 { "nothing" } else { "none" };
        parts.push(format!("{nothing} lost of {expected} {unit}"));
    } else {
        let mut causes = BTreeMap::new();
        for (cause, count) in now.sources.values().flat_map(|source| &source.lost) {
            *causes.entry(*cause).or_insert(0) += count;
        }
        let causes: Vec<_> = causes
            .iter()
            .map(|(cause, count)| format!("{cause} {count}"))
            .collect();
        parts.push(format!(
            "lost {lost} of {expected} {unit} ({})",
            causes.join(", ")
        ));
    }
    let sum = |count: fn(&daq_core::ledger::SourceReport) -> u64| -> u64 {
        now.sources.values().map(count).sum()
    };
    for (count, what) in [
        (sum(|source| source.rejected), "rejected"),
        (sum(|source| source.jumped), "jumped over"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let overrun: u64 = now.readers.values().map(|reader| reader.overrun).sum();
    let dropped: u64 = now.sinks.values().map(|sink| sink.dropped).sum();
    for (count, what) in [
        (incomplete, "incomplete"),
        (overrun, "overrun"),
        (dropped, "not written"),
    ] {
        if count > 0 {
            parts.push(format!("{count} frames {what}"));
        }
    }
    let full = now.sinks.iter().filter(|(_, sink)| sink.full);
    parts.extend(full.map(|(name, _)| format!("{name}: takes no frames")));
    parts.join(", ")
}

/// To three significant digits: more would only flicker.
fn round(rate: f64) -> f64 {
    if rate <= 0.0 {
        return 0.0;
    }
    let digits = 2.0 - rate.log10().floor();
    // Dividing by a whole power of ten keeps whole results exact, multiplying by its inverse would not.
    if digits >= 0.0 {
        let scale = 10_f64.powf(digits);
        (rate * scale).round() / scale
    } else {
        let scale = 10_f64.powf(-digits);
        (rate / scale).round() * scale
    }
}

/// A thread that answers systemd's watchdog while every data thread advances. Dropping it ends it.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts it if systemd asks for it by `WATCHDOG_USEC`; answers at half of that time.
    pub fn start(health: HealthFn) -> Option<Self> {
        if !present() {
            return None;
        }
        let period = sd_notify::watchdog_enabled().filter(|period| !period.is_zero())?;
        let (stop, stopped) = mpsc::channel::<()>();
        let answer = move || {
            let mut said = Health::default();
            loop {
                let now = health();
                if now.advances() {
                    send(&[NotifyState::Watchdog]);
                } else if said.stalled != now.stalled {
                    let names = now.stalled.join(", ");
                    tracing::error!(
                        stalled = names,
                        "data threads do not advance; the watchdog is not answered"
                    );
                    status(&format!("stalled: {names}"));
                }
                said = now;
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
                tracing::error!(%error, "no thread for the watchdog; systemd will end this service");
                None
            }
        }
    }

    /// How often systemd wants an answer, if it does.
    pub fn period() -> Option<Duration> {
        sd_notify::watchdog_enabled()
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
    use daq_core::ledger::{EngineReport, ReaderReport, SinkReport};
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Runs the ignored test `name` in a process of its own, which alone has the variables of systemd, and
    /// gives what the socket received.
    fn told(name: &str, watchdog: Option<&str>) -> Vec<String> {
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
        // The socket is read while the child runs: its queue is short.
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
    fn a_run_is_told() {
        assert_eq!(
            told("child_tells_a_run", None),
            ["READY=1\n", "STATUS=1 Gbit/s, a b\n", "STOPPING=1\n"]
        );
    }

    #[test]
    #[ignore = "run by a_run_is_told"]
    fn child_tells_a_run() {
        assert!(present());
        ready();
        status("1 Gbit/s, a\nb");
        stopping();
        assert!(
            Watchdog::start(Arc::new(Health::default)).is_none(),
            "systemd did not ask for a watchdog"
        );
    }

    #[test]
    fn the_watchdog_is_answered_until_a_thread_stalls() {
        let messages = told("child_stalls", Some("20000"));
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
            "no answer after the stall, and told once"
        );
    }

    #[test]
    #[ignore = "run by the_watchdog_is_answered_until_a_thread_stalls"]
    fn child_stalls() {
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
        let watchdog = Watchdog::start(health).expect("systemd asked for it");
        for _ in 0..3 {
            again.recv().unwrap();
        }
        // The next call may have begun before this is seen; the three after it have not.
        stall.store(true, Ordering::SeqCst);
        for _ in 0..4 {
            again.recv().unwrap();
        }
        drop(watchdog);
        status("asked again");
    }

    #[test]
    fn nobody_is_told_without_a_socket() {
        if present() {
            eprintln!("skipped: NOTIFY_SOCKET is set for this test itself");
            return;
        }
        ready();
        status("x");
        stopping();
        assert!(Watchdog::start(Arc::new(Health::default)).is_none());
    }

    #[test]
    fn the_line_tells_rate_and_loss() {
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
            "0 bit/s, nothing lost of 20 packets"
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
            line.ends_with(", 5 frames overrun, 6 frames not written, disk: takes no frames"),
            "{line}"
        );
    }

    #[test]
    fn frames_that_came_in_part_are_told_of() {
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
            "0 bit/s, none lost of 7 frames, 2 frames incomplete"
        );
    }

    #[test]
    fn rates_are_rounded_to_three_digits() {
        for (rate, rounded) in [
            (0.0, 0.0),
            (1.0, 1.0),
            (1234.0, 1230.0),
            (99_960.0, 100_000.0),
            (12_345e6, 12.3e9),
        ] {
            assert_eq!(round(rate), rounded);
        }
    }

    /// The template unit in a directory of its own, with a program that exists.
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
                let said = String::from_utf8_lossy(&output.stderr);
                if [
                    "unrecognized option",
                    "Unknown command",
                    "Failed to initialize manager",
                ]
                .iter()
                .any(|reason| said.contains(reason))
                {
                    eprintln!("skipped: this systemd-analyze cannot do {arguments:?}: {said}");
                    return;
                }
                let told = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success(), "{arguments:?}: {told}{said}");
                // An unknown key or value is told and then ignored.
                assert!(!said.contains(unit), "{said}");
            }
        }
    }

    #[test]
    fn the_unit_is_valid() {
        let (_dir, unit) = unit();
        analyze(&["verify", "--man=no"], &unit.replace("daq@", "daq@adc"));
        analyze(&["verify", "--man=no"], &unit);
    }

    #[test]
    fn the_unit_leaves_little_open() {
        let (_dir, unit) = unit();
        // The scale goes from 0 to 10; the threshold is in tenths.
        analyze(
            &["security", "--offline=true", "--threshold=20", "--no-pager"],
            &unit,
        );
    }
}
