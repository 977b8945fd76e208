//! Tests runs whose terminal, pipe or service manager stalls or disappears. Data must continue to flow, and the run
//! must end when requested.

mod flood;
mod progress;
mod sys;
mod top;

use super::sender::Sender;
use daq_testkit::{Daq, TIMEOUT, assert_contains, files, free_tcp_port, get, wait_for, wait_until};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Instant;

const CTRL_S: &[u8] = b"\x13";
const CTRL_Q: &[u8] = b"\x11";

/// A run that receives UDP packets and serves HTTP. Each test chooses its stderr.
struct Run {
    daq: Daq,
    child: Child,
    address: SocketAddr,
    sender: Sender,
}

impl Run {
    fn start(arguments: &[&str], env: &[(&str, &str)], stderr: OwnedFd, stdout: Stdio) -> Self {
        let (sender, http) = (Sender::new(), free_tcp_port());
        let daq = Daq::new(&format!(
            r#"{}
[ring.r]
slot = "8 KiB"
slots = 256
[sink.disk]
driver = "file"
input = "r"
path = "out"
segment = "1 MiB"
[http]
listen = "127.0.0.1:{http}"
"#,
            sender.source("a", "r")
        ));
        let mut command = daq.command(&[&["run", "daq.toml"], arguments].concat());
        command
            .envs(env.iter().copied())
            .stdout(stdout)
            .stderr(stderr);
        let child = command.spawn().unwrap();
        // The slave side of the terminal must not stay open in this process.
        drop(command);
        let mut run = Self {
            daq,
            child,
            address: SocketAddr::from(([127, 0, 0, 1], http)),
            sender,
        };
        wait_for("readiness", || {
            run.assert_running();
            get(run.address, "/-/ready")
                .ok()
                .filter(|answer| answer.code == 200)
        });
        run
    }

    /// Starts a run on the terminal `slave`.
    fn on_terminal(slave: File) -> Self {
        let stdout = slave.try_clone().unwrap();
        Self::start(&[], &[("TERM", "xterm")], slave.into(), stdout.into())
    }

    fn assert_running(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "the run ended");
    }

    fn status(&self) -> Value {
        serde_json::from_str(&get(self.address, "/status").unwrap().body).unwrap()
    }

    /// Sends packets until the source has delivered more than before.
    fn assert_data_flows(&mut self) {
        let delivered = |run: &Self| {
            let status = run.status();
            status["report"]["sources"]["a"]["delivered"]
                .as_u64()
                .unwrap()
        };
        let before = delivered(self);
        wait_for("delivered packets", || {
            self.sender.send(64);
            self.assert_running();
            (delivered(self) > before).then_some(())
        });
    }

    /// Makes daq log a warning: sends a packet whose number is far away from the others.
    fn provoke_warning(&self) {
        self.sender.send_number(1 << 50);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < TIMEOUT, "the run did not end in time");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Requests the end of the run. The run must succeed and close all files.
    fn end(&mut self, signal: Signal) {
        self.signal(signal);
        assert_eq!(self.wait(), Some(0));
        let partial = files(&self.daq.path("out"), ".partial");
        assert!(partial.is_empty(), "{partial:?}");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads `terminal` on a separate thread until the terminal closes. Returns a function that returns everything shown so
/// far.
fn screen(mut terminal: File) -> impl Fn() -> String {
    let shown = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let copy = shown.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = terminal.read(&mut buffer) {
            copy.lock().unwrap().extend_from_slice(&buffer[..count]);
        }
    });
    move || String::from_utf8_lossy(&shown.lock().unwrap()).into_owned()
}

/// Returns both ends of a full pipe.
fn full_pipe() -> (PipeReader, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while (&writer).write(&[b'x'; 256]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer.into())
}

#[test]
fn terminal_closed_with_sighup_ends_run_cleanly() {
    for _ in 0..3 {
        let (master, slave) = sys::open(100, 30);
        let mut run = Run::on_terminal(slave);
        run.assert_data_flows();
        drop(master);
        run.end(Signal::HUP);
        // If the first run had not ended cleanly, a second run of the same pipeline would report that.
        let outcome = run.daq.run(&["--for", "1 ms"]).ok();
        assert!(!outcome.stderr.contains("cleanly"), "{}", outcome.stderr);
    }
}

#[test]
fn sighup_under_nohup_is_ignored() {
    let daq = Daq::new(
        "[source.a]\ndriver = \"sim\"\nring = \"r\"\npace = \"1 Mbit/s\"\n[ring.r]\nslot = \"8 KiB\"\n[sink.n]\ndriver = \"null\"\ninput = \"r\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
    );
    let mut command = std::process::Command::new("nohup");
    daq.prepare(&mut command);
    command
        .arg(daq_testkit::binary())
        .args(["run", "daq.toml", "--report", "json"]);
    let mut live = daq.spawn_command(command);
    live.wait_ready();
    live.signal(Signal::HUP);
    live.wait_count("sources.a.delivered", 1);
    let status: Value = serde_json::from_str(&live.get("/status").body).unwrap();
    assert_ne!(status["state"], "stopping");
    live.signal(Signal::TERM);
    let _ = live.wait().ok();
}

#[test]
fn terminal_closed_warnings_do_not_disturb_reception() {
    let (master, slave) = sys::open(100, 30);
    let mut run = Run::on_terminal(slave);
    run.assert_data_flows();
    drop(master);
    for _ in 0..3 {
        run.assert_data_flows();
        run.provoke_warning();
    }
    run.assert_data_flows();
    run.end(Signal::TERM);
}

#[test]
fn terminal_stopped_delays_neither_data_nor_exit() {
    let (mut master, slave) = sys::open(100, 30);
    let mut run = Run::on_terminal(slave);
    run.assert_data_flows();
    master.write_all(CTRL_S).unwrap();
    for _ in 0..3 {
        run.provoke_warning();
        run.assert_data_flows();
    }
    run.end(Signal::TERM);
}

#[test]
fn terminal_resumed_shows_log_live_block_and_report() {
    let (mut master, slave) = sys::open(60, 30);
    let mut run = Run::on_terminal(slave);
    let shown = screen(master.try_clone().unwrap());
    run.assert_data_flows();
    master.write_all(CTRL_S).unwrap();
    run.provoke_warning();
    run.assert_data_flows();
    master.write_all(CTRL_Q).unwrap();
    wait_for("the warning", || shown().contains("WARN").then_some(()));
    let log = shown();
    let line = log.lines().find(|line| line.contains("WARN")).unwrap();
    // Find a time such as 18:27:55Z among the escape sequences.
    let is_time = |word: &[u8]| word[8] == b'Z' && [word[2], word[5]] == [b':'; 2];
    assert!(line.as_bytes().windows(9).any(is_time), "{line:?}");
    // The block must be erased before it is drawn again, and no line may be wider than the terminal.
    wait_for("the live block", || {
        let shown = shown();
        (shown.contains("source a") && shown.contains("A\r\x1b[J")).then_some(())
    });
    run.end(Signal::INT);
    wait_for("the report", || {
        shown().contains("reader disk of r").then_some(())
    });
    let shown = shown();
    let block = shown.lines().filter(|line| line.contains("ring   r"));
    assert!(
        block
            .clone()
            .all(|line| line.trim_end().chars().count() < 60),
        "{shown}"
    );
    let after = shown.rsplit("\x1b[J").next().unwrap();
    assert!(
        !after.contains("ring   r"),
        "the block is still shown:\n{after}"
    );
}

#[test]
fn pipe_unread_delays_neither_data_nor_exit() {
    let (_reader, writer) = full_pipe();
    let mut run = Run::start(&["--verbose"], &[], writer, Stdio::null());
    for _ in 0..3 {
        run.provoke_warning();
        run.assert_data_flows();
    }
    run.end(Signal::TERM);
}

#[test]
fn report_with_unread_stderr_is_printed() {
    let (_reader, writer) = full_pipe();
    let (mut stdout, report) = std::io::pipe().unwrap();
    let mut run = Run::start(&["--report", "json"], &[], writer, report.into());
    run.assert_data_flows();
    run.end(Signal::TERM);
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert!(report["sources"]["a"]["delivered"].as_u64().unwrap() > 0);
}

#[test]
fn second_signal_with_blocked_sink_and_stderr_exits_immediately() {
    let (_reader, writer) = full_pipe();
    let http = free_tcp_port();
    let daq = Daq::new(&format!(
        "[source.a]\ndriver = \"sim\"\nring = \"r\"\n[ring.r]\nslot = \"8 KiB\"\nslots = 1024\n[sink.slow]\n\
         driver = \"null\"\ninput = \"r\"\ndelay = \"1 min\"\nburst = 1\n[http]\nlisten = \"127.0.0.1:{http}\"\n"
    ));
    let mut command = daq.command(&["run", "daq.toml"]);
    let child = command
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], http));
    let mut run = Run {
        daq,
        child,
        address,
        sender: Sender::new(),
    };
    wait_for("readiness", || {
        run.assert_running();
        get(address, "/-/ready")
            .ok()
            .filter(|answer| answer.code == 200)
    });
    run.signal(Signal::TERM);
    wait_for("the state `stopping`", || {
        (run.status()["state"] == "stopping").then_some(())
    });
    // A signal shortly after the first one is the same request.
    wait_until("the end", || {
        run.signal(Signal::TERM);
        run.child.try_wait().unwrap().is_some()
    });
    assert_eq!(run.wait(), Some(128 + 15));
}

/// A terminal closes, and then its service manager stops the run. SIGHUP must not count as the first signal.
#[test]
fn signal_after_sighup_drains_and_next_signal_exits() {
    for (delay, code) in [("1 s", 0), ("1 min", 128 + 15)] {
        let daq = Daq::new(&format!(
            "[source.a]\ndriver = \"sim\"\nring = \"r\"\npace = \"1 Mbit/s\"\n[ring.r]\nslot = \"8 KiB\"\nslots = 1024\n\
             [sink.slow]\ndriver = \"null\"\ninput = \"r\"\ndelay = \"{delay}\"\nburst = 1\n[http]\nlisten = \"127.0.0.1:0\"\n",
        ));
        // The tests themselves may run under nohup, so reset the signal.
        let mut command = std::process::Command::new("env");
        daq.prepare(&mut command);
        command
            .arg("--default-signal=HUP")
            .arg(daq_testkit::binary())
            .args(["run", "daq.toml", "--report", "json", "--drain", "10 min"]);
        let mut live = daq.spawn_command(command);
        live.wait_count("rings.r.published", 2);
        live.signal(Signal::HUP);
        live.wait_log("SIGHUP: stopping");
        live.signal(Signal::TERM);
        // Pending signals of the same kind are delivered only once, so send the signal repeatedly.
        while code != 0 && live.is_running() {
            live.signal(Signal::TERM);
        }
        let outcome = live.wait();
        assert_eq!(outcome.code, code, "{}", outcome.stderr);
    }
}

#[test]
fn log_messages_dropped_are_counted_in_metrics_and_status() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = Run::start(&[], &[], writer.into(), Stdio::null());
    run.provoke_warning();
    run.assert_data_flows();
    wait_for("log_dropped", || {
        (run.status()["log_dropped"].as_u64().unwrap() >= 1).then_some(())
    });
    let metrics = get(run.address, "/metrics").unwrap().body;
    let dropped = metrics
        .lines()
        .find_map(|line| line.strip_prefix("daq_log_dropped_total "));
    assert!(dropped.unwrap().parse::<f64>().unwrap() >= 1.0);
    run.end(Signal::TERM);
}

#[test]
fn notify_socket_full_delays_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    // Fill the queue of the socket.
    let full = UnixDatagram::unbound().unwrap();
    full.set_nonblocking(true).unwrap();
    full.connect(&path).unwrap();
    while full.send(b"full").is_ok() {}
    let env = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "20000"),
    ];
    let (_reader, writer) = std::io::pipe().unwrap();
    let mut run = Run::start(&[], &env, writer.into(), Stdio::null());
    run.assert_data_flows();
    // Readiness must be sent when the queue has space again.
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut buffer = [0; 4096];
    wait_for("READY=1", || {
        let length = socket.recv(&mut buffer).unwrap();
        buffer[..length].starts_with(b"READY=1").then_some(())
    });
    run.assert_data_flows();
    run.end(Signal::TERM);
}

#[test]
fn notify_socket_missing_is_logged_and_run_continues() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let env = [
        ("NOTIFY_SOCKET", "/nonexistent/notify"),
        ("WATCHDOG_USEC", "abc"),
    ];
    let mut run = Run::start(&[], &env, writer.into(), Stdio::null());
    run.assert_data_flows();
    run.end(Signal::TERM);
    let mut log = String::new();
    reader.read_to_string(&mut log).unwrap();
    let lines = log
        .lines()
        .filter(|line| line.contains("cannot notify systemd"));
    assert!((1..100).contains(&lines.count()), "{log}");
}

#[test]
fn state_each_second_is_logged_only_when_verbose() {
    let config = "[source.a]\ndriver = \"sim\"\nring = \"r\"\npace = \"1 Mbit/s\"\n[ring.r]\nslot = \"8 KiB\"\n[sink.n]\ndriver = \"null\"\ninput = \"r\"\n";
    let daq = Daq::new(config);
    let mut live = daq.spawn(&["--verbose"]);
    live.wait_log("bit/s, ");
    let _ = live.stop().ok();
    let outcome = daq.run(&["--for", "2500 ms"]).ok();
    assert_contains!(outcome.stderr => !"bit/s, ", "running");
}

#[test]
fn log_filter_invalid_is_reported() {
    let daq = Daq::new("[source.a]\ndriver = \"sim\"\nring = \"r\"\n[ring.r]\nslot = \"8 KiB\"\n[sink.n]\ndriver = \"null\"\ninput = \"r\"\n")
        .env("DAQ_LOG", "daq=loud");
    let outcome = daq.run(&["--for", "10 ms"]).ok();
    assert_contains!(outcome.stderr => "DAQ_LOG=daq=loud");
}
