//! Fixtures of daq's tests.
//!
//! Components: [`ring`], [`source`], [`sink`] run one component between rings on the test's thread.
//! [`allocations`] counts allocations, and [`loopback`] waits for datagrams.
//!
//! Whole runs: a test gives a configuration to [`Daq`], which stores it in its own directory, and runs the binary on it:
//! [`Daq::run`] until it exits, [`Daq::spawn`] to observe it. The final report must be one JSON object whose ledgers
//! balance, or the test fails. No test asserts on elapsed time; [`TIMEOUT`] only turns a hang into a failure.
//!
//! A test that lacks something it needs is skipped with the reason: see [`skip!`] and [`Python`].

#![allow(
    clippy::missing_panics_doc,
    reason = "test helpers report failures by panicking"
)]
#![allow(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

pub mod allocations;
mod cuda;
mod daq;
mod disk;
pub mod hsb_packet;
pub mod ledger;
mod live;
pub mod loopback;
pub mod network;
mod python;
mod relay;
pub mod ring;
pub mod sink;
pub mod source;
mod sys;
mod text;

pub use cuda::Simulated;
pub use daq::{Daq, Done, Outcome, binary, configs, repository};
pub use disk::small_disk;
pub use live::{Answer, Live, get};
pub use python::Python;
pub use relay::Relay;
#[doc(hidden)]
pub use text::check_part;

use std::fmt::{Display, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time after which a test fails as hanging: much longer than anything takes on a slow and busy machine.
pub const TIMEOUT: Duration = Duration::from_mins(5);

/// Ends the test and prints why it cannot run, even if test output is captured.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::print_uncaptured(&format!("skipped: {}", format_args!($($reason)*)));
        return;
    }};
}

/// Returns the [`Python`] that can import the given packages; skips the test if there is none.
#[macro_export]
macro_rules! python {
    ($($package:literal),+) => {
        match $crate::Python::with(&[$($package),+]) {
            Ok(python) => python,
            Err(why) => $crate::skip!("{why}"),
        }
    };
}

/// Prints a line to stderr, bypassing the capture of test output.
pub fn print_uncaptured(line: &str) {
    use std::io::Write;
    let _ = writeln!(
        std::io::stderr(),
        "{}: {line}",
        std::thread::current().name().unwrap_or("test")
    );
}

/// Returns a free TCP port that no other test gets, in this process or in another.
pub fn free_tcp_port() -> u16 {
    free(|port| TcpListener::bind(("0.0.0.0", port)).is_ok())
}

/// Returns a free UDP port that no other test gets, in this process or in another.
pub fn free_udp_port() -> u16 {
    free(|port| UdpSocket::bind(("0.0.0.0", port)).is_ok())
}

/// Chooses from the ports that Linux does not assign automatically, so a free port stays free. Each port is returned
/// once while its lock, a name in the abstract namespace, is held: until this process ends.
fn free(is_free: impl Fn(u16) -> bool) -> u16 {
    static LOCKS: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let mut range = range
        .split_whitespace()
        .map(|port| port.parse::<u16>().unwrap());
    let (first, last) = (range.next().unwrap(), range.next().unwrap());
    let outside = (10_000..first).chain(last.saturating_add(1)..u16::MAX);
    // If Linux assigns all ports automatically, use those too.
    let mut ports = outside.chain(first.max(10_000)..last);
    let lock = |port: u16| {
        let name = SocketAddr::from_abstract_name(format!("daq-test-port-{port}")).unwrap();
        UnixDatagram::bind_addr(&name).ok()
    };
    let (port, lock) = ports
        .find_map(|port| Some((port, lock(port).filter(|_| is_free(port))?)))
        .expect("a free port exists");
    LOCKS.lock().unwrap().push(lock);
    port
}

/// Waits until `poll` returns a value; panics with `what` after [`TIMEOUT`].
pub fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    wait_for_ok(what, || poll().ok_or("nothing"))
}

/// Waits until `poll` succeeds; panics with `what` and the last error, which describes what was found instead, after
/// [`TIMEOUT`].
pub fn wait_for_ok<T, E: Display>(what: &str, mut poll: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        let error = match poll() {
            Ok(found) => return found,
            Err(error) => error,
        };
        assert!(
            start.elapsed() < TIMEOUT,
            "timed out waiting for {what}; found {error}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `is_so` returns true; panics with `what` after [`TIMEOUT`].
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Returns the full name of the test `name` in `module`, the `module_path!()` of the caller, as `--exact` expects it.
pub fn test_name(module: &str, name: &str) -> String {
    match module.split_once("::") {
        Some((_, path)) => format!("{path}::{name}"),
        None => name.to_owned(),
    }
}

/// Returns the full name of the calling test, as `--exact` expects it. Must not be called in a closure.
#[macro_export]
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::test_of(std::any::type_name_of_val(&here))
    }};
}

/// Removes the crate and the last name from `path`.
#[doc(hidden)]
pub fn test_of(path: &'static str) -> &'static str {
    let (_, path) = path.split_once("::").unwrap();
    path.strip_suffix("::here").unwrap()
}

/// Returns a command that runs the test `test`, a full name, in its own process.
pub fn test_process(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Environment variable with the name of the test that a child process runs.
const CHILD: &str = "DAQ_TEST_CHILD";

/// Runs `work` in a process of its own, which `prepare` configures, by running the calling test `test`,
/// [`this_test!`], again. Returns the result in the parent process. `case` distinguishes the calls of one test.
pub fn own_process(
    test: &str,
    case: &str,
    prepare: impl FnOnce(&mut Command),
    work: impl FnOnce(),
) -> Option<Output> {
    let name = format!("{test} {case}");
    if let Some(child) = std::env::var_os(CHILD) {
        if *child == *name {
            work();
        }
        return None;
    }
    let mut command = test_process(test);
    prepare(&mut command);
    let output = command.env(CHILD, name).output().unwrap();
    let started = output
        .stdout
        .windows(14)
        .any(|text| text == b"running 1 test");
    assert!(started, "there is no test {test}");
    Some(output)
}

/// Runs `work` as [`own_process`] does. Returns the output in the parent process, after the child process has succeeded.
pub fn alone(
    test: &str,
    prepare: impl FnOnce(&mut Command),
    work: impl FnOnce(),
) -> Option<String> {
    let output = own_process(test, "", prepare, work)?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "{test}: {printed}");
    Some(printed)
}

/// Returns the program `name` from the search path, if it exists.
pub fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Returns `bytes` as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Returns the files in `dir` whose names end in `suffix`, sorted by name; none if the directory does not exist.
pub fn files(dir: &Path, suffix: &str) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().ends_with(suffix))
        })
        .collect();
    found.sort();
    found
}

/// Returns the names in `dir`, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    files(dir, "").iter().map(name).collect()
}

/// Pseudo-random numbers that repeat for the same seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_unique() {
        let mut ports: Vec<u16> = (0..50)
            .flat_map(|_| [free_tcp_port(), free_udp_port()])
            .collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
        let taken = UdpSocket::bind(("0.0.0.0", ports[99])).unwrap();
        assert_ne!(free_udp_port(), taken.local_addr().unwrap().port());
    }
}
