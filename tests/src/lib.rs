//! Whole-system tests of daq: what they share.
//!
//! A test gives a configuration to [`Daq`], which keeps it in a directory of its own, and runs the binary on it:
//! [`Daq::run`] to the end, [`Daq::spawn`] to watch it. Either way the final report must be one JSON object whose
//! ledgers balance, or the test fails. Nothing here asserts on elapsed time; [`TIMEOUT`] only turns a hang into a
//! failure.
//!
//! What a test needs and does not find makes it skip with the reason: see [`skip!`] and [`Python`].

#![allow(
    clippy::missing_panics_doc,
    reason = "these are helpers of tests: panicking is how they report"
)]
#![allow(clippy::unwrap_used, reason = "the same")]

mod cuda;
mod daq;
pub mod ledger;
mod live;
pub mod network;
mod python;

pub use cuda::Simulated;
pub use daq::{Daq, Done, Outcome, binary, configs, repository};
pub use live::{Answer, Live, get};
pub use python::Python;

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long something may take before it counts as hanging: far longer than anything takes on a slow machine that
/// has other things to do.
pub const TIMEOUT: Duration = Duration::from_mins(5);

/// Ends the test, telling why it could not run. The reason is shown even where output of tests is captured.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::tell(&format!("skipped: {}", format_args!($($reason)*)));
        return;
    }};
}

/// Writes a line to stderr past the capture of test output.
pub fn tell(line: &str) {
    use std::io::Write;
    let _ = writeln!(
        std::io::stderr(),
        "{}: {line}",
        std::thread::current().name().unwrap_or("test")
    );
}

/// A TCP port that is free and that no other test is given, in this process or in another.
pub fn free_tcp_port() -> u16 {
    free(|port| TcpListener::bind(("0.0.0.0", port)).is_ok())
}

/// A UDP port that is free and that no other test is given, in this process or in another.
pub fn free_udp_port() -> u16 {
    free(|port| UdpSocket::bind(("0.0.0.0", port)).is_ok())
}

/// Ports that the system gives to nobody by itself, so that one which is free now stays so. Each is given out once
/// while its lock, a name of the abstract namespace, is held: until this process ends.
fn free(is_free: impl Fn(u16) -> bool) -> u16 {
    static LOCKS: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let mut range = range
        .split_whitespace()
        .map(|port| port.parse::<u16>().unwrap());
    let (first, last) = (range.next().unwrap(), range.next().unwrap());
    let outside = (10_000..first).chain(last.saturating_add(1)..u16::MAX);
    // A system that gives out every port leaves no choice.
    let mut ports = outside.chain(first.max(10_000)..last);
    let lock = |port: u16| {
        let name = SocketAddr::from_abstract_name(format!("daq-test-port-{port}")).unwrap();
        UnixDatagram::bind_addr(&name).ok()
    };
    let (port, lock) = ports
        .find_map(|port| Some((port, lock(port).filter(|_| is_free(port))?)))
        .expect("there is a port that is free");
    LOCKS.lock().unwrap().push(lock);
    port
}

/// Waits until `look` gives something; panics with `what` where that does not happen within [`TIMEOUT`].
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the full name of the test `name` in `module`, the `module_path!()` of the caller, as `--exact` expects it.
pub fn test_name(module: &str, name: &str) -> String {
    match module.split_once("::") {
        Some((_, path)) => format!("{path}::{name}"),
        None => name.to_owned(),
    }
}

/// Returns a command that runs the test `name` in `module` in its own process.
pub fn test_process(module: &str, name: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &test_name(module, name)]);
    command
}

/// The program `name` in the search path, if it is there.
pub fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// The files in `dir` whose names end in `suffix`, in order of their names; none where there is no such directory.
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

/// Numbers that look random and repeat with their seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `end`.
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
