//! Notifications to systemd: readiness, a status line, and a watchdog that depends on the data threads.
//!
//! Without `NOTIFY_SOCKET` in the environment, nothing is sent and no thread is started. Notifications never block or
//! fail a run: if the socket is full, readiness is sent later and other messages are dropped; other failures are
//! logged.

use crate::http::{Health, HealthFn};
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

/// Extends the timeout of the current state, start or stop: systemd must receive another message within `time`.
pub fn extend_timeout(time: Duration) {
    send(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
}

/// Sends one status line, which `systemctl status` shows; see [`status_line`](crate::report::status_line).
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
            [
                "EXTEND_TIMEOUT_USEC=60000000\n",
                "READY=1\n",
                "STATUS=1 Gbit/s, a b\n",
                "STOPPING=1\n"
            ]
        );
    }

    #[test]
    #[ignore = "run by systemd_is_notified_of_run"]
    fn child_process_notifies_run() {
        assert!(present());
        extend_timeout(Duration::from_mins(1));
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
                started: true,
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
    fn unit_file_permits_attach_and_does_not_restart_wrong_configurations() {
        let (_dir, unit) = unit();
        let text = std::fs::read_to_string(unit).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let place = |line: &str| lines.iter().position(|known| *known == line).expect(line);
        let denied = place("SystemCallFilter=~@privileged @keyring @ipc");
        // The group @ipc of systemd contains these calls. CUDA does not start without pipes.
        assert!(place("SystemCallFilter=memfd_create pipe pipe2") > denied);
        let devices = lines.iter().filter(|line| line.contains("DeviceAllow="));
        assert!(devices.clone().any(|line| line.contains("char-nvidia* rw")));
        place("RestartPreventExitStatus=64 78");
        assert!(!text.contains("\nExecStartPre="));
        place("Group=daq");
        place("StateDirectoryMode=0750");
        place("Environment=CUDA_CACHE_PATH=%C/daq/cuda");
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
