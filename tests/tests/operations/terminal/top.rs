//! Tests `daq top` with running daemons: as plain text, and on a terminal.

use super::sys;
use daq_testkit::{Daq, Live, assert_contains, free_tcp_port, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CONFIG: &str = r#"
[daq]
name = "telescope"

[source.adc]
driver = "sim"
ring = "raw"
packet = 1024
pace = "40 Mbit/s"

[ring.raw]
slot = "16 KiB"
slots = 16

[sink.disk]
driver = "null"
input = "raw"

[http]
listen = "127.0.0.1:0"
"#;

fn started() -> (Daq, Live, String) {
    let daq = Daq::new(CONFIG);
    let mut live = daq.spawn(&[]);
    live.wait_count("readers.disk.read", 1);
    let address = live.address().to_string();
    (daq, live, address)
}

#[test]
fn top_prints_several_daemons_once_as_plain_text() {
    let (daq, live, address) = started();
    let down = format!("127.0.0.1:{}", free_tcp_port());
    let done = daq.cli(&["top", "--interval", "200 ms", &address, &down]);
    assert_eq!(done.code, 69, "{}{}", done.stdout, done.stderr);
    assert_contains!(done.stdout =>
        "telescope  running", "  SOURCE", "\n  adc ", "\n  raw ", "\n  disk ", "complete since"
    );
    assert_contains!(done.stderr => format!("error: {down}: connection refused").as_str(), "`daq ls`");
    assert!(!done.stderr.contains("again"), "{}", done.stderr);
    assert!(!done.stdout.contains('\x1b'), "{:?}", done.stdout);
    let done = daq.cli(&["top", "--once", &address, "--match", "a*"]).ok();
    assert!(!done.stdout.contains("disk"), "{}", done.stdout);
    let done = daq.cli(&["top", "https://daq1"]);
    assert_eq!(done.code, 64, "{}", done.stderr);
    let _ = live.stop().ok();
}

/// `daq top` on a terminal.
struct Shown {
    child: Child,
    master: File,
    text: Arc<Mutex<String>>,
}

impl Shown {
    fn start(daq: &Daq, arguments: &[&str]) -> Self {
        let (master, slave) = sys::open(120, 40);
        let mut command = daq.command(&[&["top"], arguments].concat());
        command
            .env("TERM", "xterm")
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave);
        let child = command.spawn().unwrap();
        // The slave side of the terminal must not stay open in this process.
        drop(command);
        let text = Arc::new(Mutex::new(String::new()));
        let (mut read, shared) = (master.try_clone().unwrap(), text.clone());
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // The read fails when the last process has closed the terminal.
            while let Ok(n @ 1..) = read.read(&mut part) {
                let part = String::from_utf8_lossy(&part[..n]).into_owned();
                shared.lock().unwrap().push_str(&part);
            }
        });
        Self {
            child,
            master,
            text,
        }
    }

    fn wait_text(&self, wanted: &str) {
        wait_for(wanted, || {
            self.text.lock().unwrap().contains(wanted).then_some(())
        });
    }

    /// Waits for the end. Returns the exit code.
    fn ended(mut self) -> Option<i32> {
        let status = wait_for("the end of daq top", || self.child.try_wait().unwrap());
        // It leaves the alternate screen and shows the cursor again.
        self.wait_text("\x1b[?1049l");
        self.wait_text("\x1b[?25h");
        status.code()
    }
}

#[test]
fn top_restores_the_terminal_when_the_user_quits_or_a_signal_ends_it() {
    let (daq, live, address) = started();
    for key in [b"q", b"\x03"] {
        let mut shown = Shown::start(&daq, &[&address]);
        shown.wait_text("telescope");
        shown.master.write_all(key).unwrap();
        assert_eq!(shown.ended(), Some(0));
    }
    for signal in [Signal::TERM, Signal::HUP] {
        let shown = Shown::start(&daq, &[&address]);
        shown.wait_text("telescope");
        let pid = Pid::from_raw(i32::try_from(shown.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        assert_eq!(shown.ended(), Some(0));
    }
    let _ = live.stop().ok();
}

#[test]
fn top_ends_when_its_terminal_disappears() {
    let (daq, live, address) = started();
    let (mut master, slave) = sys::open(120, 40);
    let mut command = daq.command(&["top", &address]);
    command
        .env("TERM", "xterm")
        .stdin(slave.try_clone().unwrap())
        .stdout(slave.try_clone().unwrap())
        .stderr(slave);
    let mut child = command.spawn().unwrap();
    drop(command);
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !text.contains("telescope") {
        let n = master.read(&mut part).unwrap();
        text.push_str(&String::from_utf8_lossy(&part[..n]));
    }
    drop(master);
    wait_for("the end of daq top", || child.try_wait().unwrap());
    let _ = live.stop().ok();
}

#[test]
fn top_shows_a_daemon_that_ends_and_one_that_starts() {
    let port = free_tcp_port();
    let daq = Daq::new(&CONFIG.replace("127.0.0.1:0", &format!("127.0.0.1:{port}")));
    let address = format!("127.0.0.1:{port}");
    let mut shown = Shown::start(&daq, &["--interval", "100 ms", "--no-colours", &address]);
    shown.wait_text("connection refused");
    let live = daq.spawn(&[]);
    shown.wait_text("telescope");
    let _ = live.stop().ok();
    // Only changes are written, so a new size shows whole lines.
    let mut columns = 120;
    wait_for("the end of the daemon", || {
        shown.text.lock().unwrap().clear();
        columns -= 1;
        sys::resize(&shown.master, columns.max(80), 30);
        std::thread::sleep(Duration::from_millis(300));
        let text = shown.text.lock().unwrap();
        text.contains("connection refused").then_some(())
    });
    // Without colours, no foreground colour is set.
    let text = shown.text.lock().unwrap().clone();
    assert!(
        !text.contains("\x1b[38;5;") && !text.contains("\x1b[31m"),
        "{text:?}"
    );
    shown.master.write_all(b"q").unwrap();
    assert_eq!(shown.ended(), Some(0));
}
