//! Two network namespaces of one test, connected by a pair of virtual Ethernet interfaces.
//!
//! The calling thread and everything that it starts move into the near namespace. Senders run in the far namespace.
//! Both namespaces are removed when the test ends, even if it fails.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../../../drivers/src/sys/own_network.rs"]
mod own_network;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;

/// Name of the interface in the near namespace.
pub const NEAR: &str = "near0";
/// Name of the interface in the far namespace.
pub const FAR: &str = "far0";

/// The Ethernet addresses of the two interfaces.
const NEAR_LLADDR: &str = "02:da:70:00:00:01";
const FAR_LLADDR: &str = "02:da:70:00:00:02";

/// The far network namespace.
pub struct Far {
    namespace: File,
}

/// Moves the calling thread into a new network namespace. Creates the pair of interfaces with `queues` queues and the
/// MTU `mtu`. Returns the reason if that is not possible.
pub fn wire(queues: u32, mtu: u32) -> Result<Far, String> {
    let namespace = thread::spawn(new_namespace).join().unwrap()?;
    new_namespace()?;
    let far = Far { namespace };
    let at = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        far.namespace.as_raw_fd()
    );
    ip("link set lo up")?;
    ip(&format!(
        "link add {NEAR} address {NEAR_LLADDR} numrxqueues {queues} numtxqueues {queues} mtu {mtu} type veth peer name \
         {FAR} address {FAR_LLADDR} numrxqueues {queues} numtxqueues {queues} mtu {mtu} netns {at}"
    ))?;
    ip(&format!("address add 10.77.0.1/24 dev {NEAR}"))?;
    ip(&format!("-6 address add fd77::1/64 dev {NEAR} nodad"))?;
    ip(&format!("link set {NEAR} up"))?;
    neighbour(["10.77.0.2", "fd77::2"], FAR_LLADDR, NEAR)?;
    far.run(|| {
        ip("link set lo up")?;
        ip(&format!("address add 10.77.0.2/24 dev {FAR}"))?;
        ip(&format!("-6 address add fd77::2/64 dev {FAR} nodad"))?;
        ip(&format!("link set {FAR} up"))?;
        neighbour(["10.77.0.1", "fd77::1"], NEAR_LLADDR, FAR)
    })?;
    Ok(far)
}

/// Enters the Ethernet address of the other end. While Linux asks for an Ethernet address, it keeps only 208 KiB of the packets
/// that wait for it, and drops the first ones of a burst.
fn neighbour(addresses: [&str; 2], lladdr: &str, interface: &str) -> Result<(), String> {
    for address in addresses {
        ip(&format!(
            "neighbour replace {address} lladdr {lladdr} dev {interface} nud permanent"
        ))?;
    }
    Ok(())
}

/// Moves the calling thread into a new network namespace.
fn new_namespace() -> Result<File, String> {
    own_network::enter().map_err(|errno| {
        format!("cannot create a network namespace, which requires root: {errno}")
    })?;
    File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())
}

/// Runs `ip` with `arguments` in this thread's namespace. Returns its output.
pub fn ip(arguments: &str) -> Result<String, String> {
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    let done = Command::new("ip")
        .args(&arguments)
        .output()
        .map_err(|error| format!("cannot run `ip` (package iproute2): {error}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(format!("ip {}: {why}", arguments.join(" ")))
}

impl Far {
    /// Runs `work` on a thread in the far namespace. Sockets that `work` opens belong to that namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = self.namespace.as_fd();
        thread::scope(|scope| {
            let far = scope.spawn(move || {
                move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            far.join().unwrap()
        })
    }
}
