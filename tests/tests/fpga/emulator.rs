//! Tests the emulator as a separate process: clients and emulators that are killed, and malformed clients.

#[expect(dead_code, reason = "other tests use the other functions")]
#[path = "../../../drivers/emulators/tests/common/bench.rs"]
mod bench;

use bench::{Bench, until};
use daq_core::dma::{DmaError, DmaMap};
use daq_drivers::fpga::device::{Device, GONE};
use daq_drivers::fpga::transports::vfio_user;
use daq_emulators::pattern::{Pattern, verify};
use daq_testkit::{TIMEOUT, assert_contains, binary, test_name, test_process};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SLOT: usize = 64 << 10;
const SLOTS: usize = 8;
/// Environment variable that makes this executable act as a client of the device at the given path.
const USER: &str = "DAQ_TEST_CARD_USER";

/// A child process and its output. The process is killed when the test ends.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn new(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Reads lines until one begins with `start`, and returns that line.
    fn wait_line(&mut self, start: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let read = self.stdout.read_line(&mut line).unwrap();
            assert!(
                read > 0,
                "the process ended before the expected output; its output:\n{all}"
            );
            if line.starts_with(start) {
                return line;
            }
            all += &line;
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < TIMEOUT, "the process did not end in time");
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that contains the socket of an emulated device.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("card.sock")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .env("DAQ_LOG", "warn")
            .args(["emulate", "xdma", "--socket"])
            .arg(self.socket())
            .args(arguments);
        command
    }

    /// Starts an emulated device. Returns when the device is ready.
    fn serve(&self, arguments: &[&str]) -> Running {
        let mut server = Running::new(&mut self.command(arguments));
        let line = server.wait_line("listening on ");
        assert_eq!(
            line.trim_end(),
            format!("listening on {}", self.socket().display())
        );
        server
    }

    /// Opens the device after its last client has disconnected. This may need several attempts, because a process that
    /// a concurrent test starts inherits that client's connection until it calls exec.
    fn open(&self) -> Arc<dyn Device> {
        let mut tries = 0;
        loop {
            match vfio_user::open(&self.socket()) {
                Err(error)
                    if tries < 100
                        && error.to_string().contains("another process uses the card") =>
                {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
                opened => return opened.unwrap(),
            }
        }
    }

    /// Uses the device as a source does. Checks its data from the first byte on.
    fn use_card(&self) -> Bench {
        let bench = Bench::new(self.open(), SLOTS, SLOT);
        bench.start();
        let mut at = 0;
        for round in 1..=4 {
            bench.credit(8);
            bench.wait_count(8 * round);
            for slot in 0..SLOTS {
                let payload = bench.payload(slot);
                assert_eq!(verify(Pattern::Counter, 4096, at, &payload), None);
                at += SLOT as u64;
            }
        }
        bench
    }
}

/// Not a test: this function runs in the process that is killed.
#[test]
fn client_process_to_be_killed() {
    let Some(socket) = std::env::var_os(USER) else {
        return;
    };
    let bench = Bench::new(vfio_user::open(Path::new(&socket)).unwrap(), SLOTS, SLOT);
    bench.start();
    bench.credit(8);
    bench.wait_count(8);
    println!("\nthe card is used");
    loop {
        bench.credit(8);
        std::thread::yield_now();
    }
}

#[test]
fn emulator_client_killed_resets_device() {
    let place = Place::new();
    let server = place.serve(&[]);
    let maps = format!("/proc/{}/maps", server.child.id());
    let has_memory = || {
        std::fs::read_to_string(&maps)
            .unwrap()
            .contains("memfd:daq")
    };
    for _ in 0..3 {
        let mut command = test_process(&test_name(module_path!(), "client_process_to_be_killed"));
        command.env(USER, place.socket());
        let mut user = Running::new(&mut command);
        user.wait_line("the card is used");
        assert!(has_memory());
        user.kill();
        // The next client waits in the queue until the previous client releases the device.
        let bench = place.use_card();
        assert!(has_memory());
        bench.stop();
        drop(bench);
    }
    // A connection is accepted only after the previous client's connection is closed.
    drop(place.open());
    assert!(!has_memory());
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0));
    assert!(!place.socket().exists());
}

#[test]
fn emulator_killed_is_reported_as_removed_device() {
    let place = Place::new();
    let server = place.serve(&["--packet", "1 KiB", "--rate", "8 Gbit/s"]);
    let mut bench = Bench::new(place.open(), SLOTS, SLOT);
    bench.start();
    bench.credit(1000);
    bench.wait_count(100);
    server.kill();
    until("the end", || bench.registers.read(0x1000) == GONE);
    // The device no longer writes, so its memory can be reused.
    bench.clear();
    bench.credit(5);
    let error = DmaMap::new(bench.device.clone().as_dma(), bench.region.clone()).unwrap_err();
    assert!(matches!(error, DmaError::Gone { .. }), "{error}");
    drop(bench.map.take());
    assert!(bench.is_clear());
    // The remaining socket file of a killed emulator must not prevent the next emulator from starting.
    assert!(place.socket().exists());
    let server = place.serve(&[]);
    place.use_card().stop();
    // The socket of a running emulator must prevent it.
    let refused = place.command(&[]).output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(69), "{stderr}");
    assert_contains!(stderr => "another process already serves a device at this path");
    place.use_card().stop();
    server.signal(Signal::INT);
    assert_eq!(server.end().code(), Some(0));
}

/// A server that is busy closes a new client's connection. [`Place::open`] depends on this error.
#[test]
fn busy_emulator_is_reported() {
    let place = Place::new();
    let listener = UnixListener::bind(place.socket()).unwrap();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.read(&mut [0; 256]).unwrap()
    });
    let error = vfio_user::open(&place.socket()).err().unwrap();
    assert_contains!(error.to_string() => "another process uses the card");
    assert!(server.join().unwrap() > 0);
}

#[test]
fn emulator_once_exits_after_first_client() {
    let place = Place::new();
    let server = place.serve(&["--once"]);
    drop(UnixStream::connect(place.socket()).unwrap());
    place.use_card().stop();
    assert_eq!(server.end().code(), Some(0));
    assert!(!place.socket().exists());
}

#[test]
fn emulator_malformed_clients_do_not_block_others() {
    let place = Place::new();
    let server = place.serve(&[]);
    let header = |command: u16, bytes: u32| {
        let mut header = [0; 16];
        header[2..4].copy_from_slice(&command.to_le_bytes());
        header[4..8].copy_from_slice(&bytes.to_le_bytes());
        header
    };
    let version = [&header(1, 20)[..], &[0, 0, 1, 0]].concat();
    let read_all = [
        &header(9, 32)[..],
        &[0; 8],
        &1_u32.to_le_bytes(),
        &0x1_0000_u32.to_le_bytes(),
    ]
    .concat();
    let attacks: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0xff; 10_000],
        header(1, 0).to_vec(),
        header(1, u32::MAX).to_vec(),
        header(2, 17).to_vec(),
        // A truncated message.
        version[..18].to_vec(),
        // A message before the version negotiation, and a DMA mapping without a file descriptor.
        [&header(2, 48)[..], &[0; 32]].concat(),
        [&version[..], &header(2, 48)[..], &[1; 32]].concat(),
        [&version[..], &header(8, 36)[..], &[0xff; 20]].concat(),
        // Many more requests than replies are ever read.
        [&version[..], &read_all.repeat(40)].concat(),
        version.repeat(100),
    ];
    for attack in &attacks {
        let mut user = UnixStream::connect(place.socket()).unwrap();
        // The emulator may close the connection before everything is sent.
        let _ = user.write_all(attack);
        let _ = user.shutdown(std::net::Shutdown::Write);
        let mut some = [0; 64];
        let _ = user.read(&mut some);
        drop(user);
        place.use_card().stop();
    }
    // A client that is connected but sends nothing occupies the device. When it disconnects, the next client is served.
    let silent = UnixStream::connect(place.socket()).unwrap();
    drop(silent);
    place.use_card().stop();
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn emulator_invalid_arguments_are_reported_before_serving() {
    let place = Place::new();
    for (arguments, code, stderr) in [
        (&["--fault", "stuk@3"][..], 64, "did you mean `stuck`"),
        (&["--fault", "stuck"], 64, "overrun@50"),
        (&["--packet", "1001 B"], 64, "1008 B"),
        (&["--rate", "0 bit/s"], 64, "leave it out"),
        (&["--pattern", "noise"], 64, "counter"),
    ] {
        let output = place.command(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(stderr), "{arguments:?}: {text}");
        assert!(!place.socket().exists());
    }
    std::fs::write(place.socket(), "notes").unwrap();
    let output = place.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    assert_eq!(std::fs::read(place.socket()).unwrap(), b"notes");
    let help = place.command(&["--help"]).output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert_contains!(help => "descriptor-magic", "lie");
}
