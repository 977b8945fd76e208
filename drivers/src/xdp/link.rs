//! The XDP program on an interface, and the sockets of its receive queues.

use super::keys::{Attach, Mode, XdpConfig};
use super::program;
use crate::sys::bpf::{self, Hook};
use crate::sys::interface::Interface;
use crate::sys::xdp::{HEADROOM, Options, Step, XdpSocket};
use daq_core::region::{HostOptions, Region};
use daq_core::source::SourceError;
use daq_core::units::counted;
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size in bytes of an Ethernet header with two VLAN tags.
const ETHERNET: usize = 14 + 8;
/// Largest MTU of a virtual interface; NICs have less than 10000.
const MAX_MTU: usize = 65_535;
/// Linux's internal `ENOTSUPP`, which some drivers return.
const NOT_SUPPORTED: i32 = 524;
/// Maximum time that Linux takes to free a queue.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of pieces received per batch.
pub(super) const BATCH: usize = 64;

/// The program on an interface. Linux detaches it when this value is dropped or when the process ends in any way.
#[derive(Debug)]
pub(super) struct Attached {
    _link: OwnedFd,
}

/// Result of opening the queues of an interface.
pub(super) struct Opened {
    /// One socket per queue, in the same order.
    pub(super) sockets: Vec<XdpSocket>,
    pub(super) attached: Attached,
    /// What was granted or refused, as sentences for the log.
    pub(super) notes: Vec<String>,
    /// Maximum length in bytes of a packet in several chunks; 0 if every packet fits into one.
    pub(super) packet: usize,
}

/// Returns the maximum length in bytes of a packet in several chunks of `chunk` bytes; 0 if every packet fits into one.
fn max_packet(mtu: usize, chunk: usize) -> usize {
    let packet = mtu + ETHERNET;
    if packet > chunk - HEADROOM { packet } else { 0 }
}

/// Returns [`max_packet`] for the interface of `config` before it is opened. If the interface does not exist, the
/// largest MTU is assumed.
pub(super) fn planned_max_packet(config: &XdpConfig) -> usize {
    let mtu = Interface::find(&config.interface).and_then(|interface| interface.mtu());
    max_packet(mtu.unwrap_or(MAX_MTU), config.chunk_bytes())
}

/// Returns the error for a refused system call.
fn refused(what: &str, why: &io::Error, help: &str) -> SourceError {
    SourceError::new(what, format!("{why}; {help}"))
}

fn code(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Opens a socket for each queue and attaches a program that redirects packets for `addresses` to the sockets.
pub(super) fn open(config: &XdpConfig, addresses: &[SocketAddr]) -> Result<Opened, SourceError> {
    let what = format!("interface {}", config.interface);
    let interface = Interface::find(&config.interface).map_err(|errno| {
        let help = "`ip link` lists all interfaces";
        refused(&what, &errno.into(), help)
    })?;
    let mtu = interface.mtu().map_err(|errno| {
        refused(
            &what,
            &errno.into(),
            "the MTU of the interface cannot be read",
        )
    })?;
    let packet = max_packet(mtu, config.chunk_bytes());
    let has_pieces = packet > 0;
    let queues = &config.queues.0;
    let max = queues.iter().max().map_or(1, |queue| queue + 1);
    let map = bpf::socket_map(max).map_err(|error| privilege(&what, &error))?;
    let code = program::assemble(addresses, config.socket_keys.from(), map.as_raw_fd());
    let mut log = vec![0; 1 << 16];
    let program = bpf::load(&code, has_pieces, &mut log).map_err(|error| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        match String::from_utf8_lossy(&log[..end]).trim() {
            "" if has_pieces && error.kind() == io::ErrorKind::InvalidInput => {
                refused(&what, &error, &longer_than_a_chunk(config, mtu))
            }
            "" => privilege(&what, &error),
            log => refused(&what, &error, &format!("the BPF verifier reports: {log}")),
        }
    })?;
    let mut notes = Vec::new();
    let (link, hook) = attach(config, &interface, &program, &what, &mut notes)?;
    let mut sockets = Vec::with_capacity(queues.len());
    for queue in queues {
        let options = Options {
            interface: interface.index(),
            queue: *queue,
            chunk: config.chunk_bytes(),
            chunks: config.packets,
            pieces: has_pieces,
            zero_copy: match config.mode {
                Mode::Auto => None,
                Mode::Copy => Some(false),
                Mode::ZeroCopy => Some(true),
            },
            batch: BATCH,
            busy_poll: config.socket_keys.busy_poll.0,
        };
        let what = format!("queue {queue} of {}", interface.name());
        let memory = Region::host(
            options.chunk * options.chunks as usize,
            HostOptions {
                node: interface.node(),
                lock: true,
                huge: true,
                shared: false,
            },
        )
        .map_err(|error| SourceError::new(&what, error.to_string()))?;
        notes.extend(memory.granted().refused.iter().cloned());
        let socket = bind(&memory, &options).map_err(|(step, errno)| {
            let is_missing = interface.queues().is_some_and(|count| *queue >= count);
            let has_pieces = has_pieces && !is_missing;
            open_error(
                &what,
                step,
                errno,
                config,
                &interface,
                has_pieces.then_some(mtu),
            )
        })?;
        sockets.push(socket);
    }
    // After this loop all queues receive packets.
    for (socket, queue) in sockets.iter().zip(queues) {
        bpf::map_socket(map.as_fd(), *queue, socket.as_fd())
            .map_err(|error| privilege(&what, &error))?;
    }
    let copies = match sockets
        .iter()
        .filter(|socket| socket.is_zero_copy())
        .count()
    {
        0 => "copied by Linux",
        n if n == sockets.len() => "zero copy",
        _ => "copied by Linux for some queues",
    };
    let location = match hook {
        Hook::Driver => "in the driver",
        Hook::Generic => "after the driver (generic mode)",
    };
    notes.push(format!(
        "packets of {} are selected {location}, {copies}",
        interface.name()
    ));
    Ok(Opened {
        sockets,
        attached: Attached { _link: link },
        notes,
        packet,
    })
}

/// Opens a socket. Retries for a while if the queue is busy, because Linux needs a moment to free the queue of a process
/// that has ended.
fn bind(memory: &Arc<Region>, options: &Options) -> Result<XdpSocket, (Step, Errno)> {
    let start = Instant::now();
    loop {
        match XdpSocket::open(memory.clone(), options) {
            Err((Step::Bind, Errno::BUSY)) if start.elapsed() < RELEASE_TIMEOUT => {
                std::thread::sleep(RELEASE_TIMEOUT / 50);
            }
            done => return done,
        }
    }
}

/// Attaches the program to the interface.
fn attach(
    config: &XdpConfig,
    interface: &Interface,
    program: &OwnedFd,
    what: &str,
    notes: &mut Vec<String>,
) -> Result<(OwnedFd, Hook), SourceError> {
    let name = interface.name();
    let try_at = |hook| bpf::attach(program.as_fd(), interface.index(), hook);
    let failed = |hook: Hook, error: io::Error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY | Errno::EXIST) => refused(
            what,
            &error,
            &format!(
                "another XDP program is attached to this interface, by another daq or another process; see `ip -details link \
                 show dev {name}` and `bpftool net`. Stop that process. Or detach the program: if `bpftool link` lists \
                 the program as link N, with `bpftool link detach id N`, otherwise with `ip link set dev {name} xdp \
                 off`"
            ),
        ),
        _ if code(&error) == libc::EPERM => privilege(what, &error),
        _ => match hook {
            Hook::Driver => refused(
                what,
                &error,
                &format!(
                    "the driver of {name} does not support XDP programs; set `attach = \"generic\"`. For packets longer \
                     than a page, also limit the MTU to 3500: `ip link set dev {name} mtu 3500`"
                ),
            ),
            Hook::Generic => refused(
                what,
                &error,
                &format!(
                    "the program cannot be attached in generic mode; if packets are longer than a page, limit the MTU to \
                     3500: `ip link set dev {name} mtu 3500`. Or use the source `udp`, which receives the same packets \
                     without XDP"
                ),
            ),
        },
    };
    if config.attach != Attach::Generic {
        match try_at(Hook::Driver) {
            Ok(link) => return Ok((link, Hook::Driver)),
            Err(error)
                if config.attach == Attach::Native
                    || matches!(code(&error), libc::EBUSY | libc::EEXIST | libc::EPERM) =>
            {
                return Err(failed(Hook::Driver, error));
            }
            Err(error) => {
                let error = match code(&error) {
                    NOT_SUPPORTED => io::Error::from_raw_os_error(libc::EOPNOTSUPP),
                    _ => error,
                };
                notes.push(format!(
                    "the driver of {name} does not support XDP programs: {error}"
                ));
            }
        }
    }
    let link = try_at(Hook::Generic).map_err(|error| failed(Hook::Generic, error))?;
    Ok((link, Hook::Generic))
}

fn privilege(what: &str, error: &io::Error) -> SourceError {
    let help = match code(error) {
        libc::EPERM | libc::EACCES => {
            "AF_XDP needs CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW: \
             `sudo setcap cap_net_admin,cap_bpf,cap_net_raw,cap_ipc_lock+ep $(which daq)`, or \
             `AmbientCapabilities=` in the unit"
        }
        libc::EINVAL | libc::ENOSYS => {
            "this Linux version does not support AF_XDP, which needs Linux 5.11 or newer with CONFIG_BPF_SYSCALL and \
             CONFIG_XDP_SOCKETS"
        }
        _ => "use the source `udp`, which receives the same packets without XDP",
    };
    refused(what, error, help)
}

fn longer_than_a_chunk(config: &XdpConfig, mtu: usize) -> String {
    let chunk = config.chunk_bytes();
    let max_mtu = chunk - HEADROOM - ETHERNET;
    format!(
        "packets of MTU {mtu} do not fit into chunks of {chunk} bytes (of which Linux reserves {HEADROOM}), and packets in \
         several chunks need Linux 6.6 and driver support; run `ip link set dev {} mtu {max_mtu}`{}",
        config.interface,
        if chunk < 4096 {
            ", or set `chunk = \"4 KiB\"`"
        } else {
            ""
        }
    )
}

/// Returns the error for a queue whose socket could not be opened. `long` is the MTU if packets longer than a chunk may be the
/// reason.
fn open_error(
    what: &str,
    step: Step,
    errno: Errno,
    config: &XdpConfig,
    interface: &Interface,
    long: Option<usize>,
) -> SourceError {
    let error = io::Error::from(errno);
    let help = match (step, errno, long) {
        (Step::Socket, Errno::AFNOSUPPORT, _) => {
            "this Linux version was built without AF_XDP sockets (CONFIG_XDP_SOCKETS)".to_owned()
        }
        (_, Errno::PERM | Errno::ACCESS, _) => return privilege(what, &error),
        (Step::Memory, Errno::NOBUFS | Errno::NOMEM, _) => {
            "the limit on locked memory is too low; raise it (`ulimit -l`, `LimitMEMLOCK=` in the unit), grant \
             CAP_IPC_LOCK, or lower `packets`"
                .to_owned()
        }
        (Step::Bind, Errno::BUSY, _) => format!(
            "another process has a socket on this queue (see `ss --xdp -p`); stop it, or use another queue: set \
             `queues = [N]` and steer the packets there with `ethtool -N {} flow-type udp4 dst-port PORT action N`",
            interface.name()
        ),
        (Step::Bind, Errno::OPNOTSUPP, _) if config.mode == Mode::ZeroCopy => {
            "the driver does not support zero copy on this queue; set `mode = \"auto\"`, which lets Linux copy the \
             packets"
                .to_owned()
        }
        (Step::Bind, Errno::INVAL | Errno::OPNOTSUPP, Some(mtu)) => {
            longer_than_a_chunk(config, mtu)
        }
        (Step::Bind, Errno::INVAL, _) => match interface.queues() {
            Some(queues) => format!(
                "{} has {}, counted from 0; change the number of queues with `ethtool -L {0} combined N` if the driver \
                 supports it",
                interface.name(),
                counted(queues, "receive queue")
            ),
            None => format!(
                "check with `ethtool -l {}` that the interface has this queue",
                interface.name()
            ),
        },
        (Step::Bind, Errno::NETDOWN, _) => {
            format!("the interface is down; run `ip link set dev {} up`", interface.name())
        }
        _ => "use the source `udp`, which receives the same packets without XDP".to_owned(),
    };
    refused(what, &error, &help)
}
