//! Tests the live line with the progress of a command, on terminals and pipes.

use super::{CTRL_S, screen, sys};
use daq_testkit::{Daq, assert_contains, free_udp_port, wait_for};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};

/// Ends each drawn line of progress, and starts its removal.
const REMOVED: &str = "\r\n\x1b[1A\r\x1b[J";

/// A benchmark that takes longer than one second and needs no hardware.
const BENCH: [&str; 6] = ["bench", "fpga", "--rounds", "2", "--frames", "64 KiB"];

/// Starts a command with stderr on a terminal. Its stdout is the same terminal, or `stdout`.
fn start(daq: &Daq, arguments: &[&str], slave: File, stdout: Option<Stdio>) -> Child {
    let stdout = stdout.unwrap_or_else(|| slave.try_clone().unwrap().into());
    let mut command = daq.command(arguments);
    command.env("TERM", "xterm").stdout(stdout).stderr(slave);
    // The command owns the slave side, which must not stay open in this process.
    command.spawn().unwrap()
}

fn ended(child: &mut Child) -> Option<i32> {
    wait_for("the end of the command", || child.try_wait().unwrap()).code()
}

/// Checks that each line that begins with `name` was removed before other text was written.
fn assert_removed(shown: &str, name: &str) {
    let start = format!("{name}  ");
    let mut lines = shown.split(&start).skip(1).peekable();
    assert!(lines.peek().is_some(), "{shown:?}");
    for line in lines {
        let end = line.find("\r\n").unwrap();
        assert!(line[end..].starts_with(REMOVED), "{shown:?}");
    }
}

#[test]
fn bench_shows_progress_and_removes_it_before_each_table() {
    let daq = Daq::new("");
    let (master, slave) = sys::open(100, 30);
    let shown = screen(master);
    let mut child = start(&daq, &BENCH, slave, None);
    assert_eq!(ended(&mut child), Some(0));
    wait_for("the tables", || {
        shown().contains("not measured").then_some(())
    });
    let shown = shown();
    assert_contains!(shown => " %  about ", " s left  round 2 of 2, step ", "throughput from an emulated device");
    assert_removed(&shown, "bench");
}

#[test]
fn bench_with_results_in_a_pipe_writes_no_progress_there() {
    let daq = Daq::new("");
    let (master, slave) = sys::open(100, 30);
    let shown = screen(master);
    let (mut stdout, writer) = std::io::pipe().unwrap();
    let arguments = [&BENCH[..], &["--json"]].concat();
    let mut child = start(&daq, &arguments, slave, Some(writer.into()));
    let mut results = String::new();
    stdout.read_to_string(&mut results).unwrap();
    assert_eq!(ended(&mut child), Some(0));
    assert!(
        serde_json::from_str::<serde_json::Value>(&results).is_ok(),
        "{results}"
    );
    assert_removed(&shown(), "bench");
}

#[test]
fn progress_is_absent_without_a_terminal() {
    let port = free_udp_port().to_string();
    let daq = Daq::new("");
    for arguments in [
        &BENCH[..],
        &["inspect", "--port", &port, "--for", "1500 ms"],
    ] {
        let done = daq.cli(arguments);
        let text = done.stdout + &done.stderr;
        assert!(
            !text.contains('\x1b') && !text.contains(" left"),
            "{text:?}"
        );
    }
    let (master, slave) = sys::open(100, 30);
    let shown = screen(master);
    let mut command = daq.command(&BENCH);
    command
        .env("TERM", "dumb")
        .stdout(Stdio::null())
        .stderr(slave);
    let mut child = command.spawn().unwrap();
    drop(command);
    assert_eq!(ended(&mut child), Some(0));
    assert_eq!(shown(), "");
}

#[test]
fn inspect_counts_down_its_time() {
    let port = free_udp_port().to_string();
    let daq = Daq::new("");
    let (master, slave) = sys::open(100, 30);
    let shown = screen(master);
    let arguments = ["inspect", "--port", &port, "--for", "3 s"];
    let mut child = start(&daq, &arguments, slave, None);
    assert_eq!(ended(&mut child), Some(1));
    wait_for("the report", || {
        shown().contains("no UDP packets arrived").then_some(())
    });
    let shown = shown();
    assert_contains!(shown => " %  about 1 s left");
    assert_removed(&shown, "inspect");
}

#[test]
fn progress_on_a_resized_terminal_is_removed_completely() {
    let port = free_udp_port().to_string();
    let daq = Daq::new("");
    let (master, slave) = sys::open(100, 30);
    let shown = screen(master.try_clone().unwrap());
    let arguments = ["inspect", "--port", &port, "--for", "4 s"];
    let mut child = start(&daq, &arguments, slave, None);
    wait_for("the line", || shown().contains("s left").then_some(()));
    sys::resize(&master, 20, 30);
    assert_eq!(ended(&mut child), Some(1));
    // The terminal has wrapped the drawn line into three.
    wait_for("the line", || {
        shown().contains("\x1b[3A\r\x1b[J").then_some(())
    });
}

#[test]
fn terminal_stopped_or_closed_does_not_block_command() {
    let daq = Daq::new("");
    for is_closed in [false, true] {
        let (mut master, slave) = sys::open(100, 30);
        master.write_all(CTRL_S).unwrap();
        let mut child = start(&daq, &BENCH, slave, Some(Stdio::null()));
        if is_closed {
            drop(master);
        }
        assert_eq!(ended(&mut child), Some(0));
    }
}

/// Returns a replay of a recording that lasts `seconds` seconds, with the additional keys `keys`.
fn replay(seconds: usize, keys: &str) -> Daq {
    const RATE: usize = 100_000;
    let daq = Daq::new(&format!(
        "[source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = \"r.sigmf-meta\"\n{keys}\n\
         [ring.raw]\nslot = 10000\n[sink.n]\ndriver = \"null\"\ninput = \"raw\"\n"
    ));
    let meta = format!(
        r#"{{"global": {{"core:datatype": "ru8", "core:version": "1.2.0", "core:sample_rate": {RATE}}},
            "captures": [{{"core:sample_start": 0}}], "annotations": []}}"#
    );
    std::fs::write(daq.path("r.sigmf-meta"), meta).unwrap();
    std::fs::write(daq.path("r.sigmf-data"), vec![1; seconds * RATE]).unwrap();
    daq
}

#[test]
fn replay_shows_remaining_time_of_recording() {
    let daq = replay(4, "");
    let (master, slave) = sys::open(100, 30);
    let shown = screen(master);
    let mut child = start(&daq, &["run", "daq.toml"], slave, None);
    assert_eq!(ended(&mut child), Some(0));
    wait_for("the report", || {
        shown().contains("reader n of raw").then_some(())
    });
    let shown = shown();
    assert_contains!(shown => "replay adc  ", " %  about 1 s left");
    let after = shown.rsplit("\x1b[J").next().unwrap();
    assert!(!after.contains("replay adc"), "{after}");
}

#[test]
fn replay_without_end_shows_no_remaining_time() {
    let daq = replay(1, "loop = true");
    let (master, slave) = sys::open(100, 30);
    let shown = screen(master);
    let arguments = ["run", "daq.toml", "--for", "3 s"];
    let mut child = start(&daq, &arguments, slave, None);
    assert_eq!(ended(&mut child), Some(0));
    assert_contains!(shown() => " % of this pass", !" left");
}
