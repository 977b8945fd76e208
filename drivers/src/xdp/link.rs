//! An interface whose packets are picked for us.

use super::config::{Attach, Mode, XdpConfig};
use super::program;
use crate::list::List;
use crate::sys::bpf::{self, Hook};
use crate::sys::interface::Interface;
use crate::sys::xdp::{HEADROOM, Options, Step, XdpSocket};
use daq_core::region::{HostOptions, Region};
use daq_core::source::SourceError;
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes around the payload of Ethernet: header, two tags.
const ETHERNET: usize = 14 + 8;
/// That of interfaces without a wire; cards' are below 10000.
const LONGEST_MTU: usize = 65_535;
/// The kernel's own "not supported" (`ENOTSUPP`), which some drivers answer.
const NOT_SUPPORTED: i32 = 524;
/// How long the kernel may take to free a queue.
const RELEASE: Duration = Duration::from_millis(500);
/// Pieces that are taken at a time, at most.
pub(super) const BATCH: usize = 64;

/// The program on an interface: it goes when this is dropped, and when the process ends, however it does.
#[derive(Debug)]
pub(super) struct Attached {
    _link: OwnedFd,
}

/// What opening gave.
pub(super) struct Opened {
    /// One socket a queue, in their order.
    pub(super) sockets: Vec<XdpSocket>,
    pub(super) attached: Attached,
    /// Sentences of what was granted.
    pub(super) told: Vec<String>,
    /// Bytes of a packet that lies in several chunks, at most; 0 where none does.
    pub(super) packet: usize,
}

/// Bytes of a packet that lies in several chunks of `chunk` bytes, at most; 0 where none does with this `mtu`.
fn longest(mtu: usize, chunk: usize) -> usize {
    let packet = mtu + ETHERNET;
    if packet > chunk - HEADROOM { packet } else { 0 }
}

/// The same for what `config` names, as far as it is known before opening: where there is no such interface, of the longest
/// packets that there are.
pub(super) fn longest_to_plan(config: &XdpConfig) -> usize {
    let mtu = Interface::find(&config.interface).and_then(|interface| interface.mtu());
    longest(mtu.unwrap_or(LONGEST_MTU), config.chunk_bytes())
}

/// The kernel says no: with what, and what to do.
fn refused(what: &str, why: &io::Error, help: &str) -> SourceError {
    SourceError::new(what, format!("{why}; {help}"))
}

fn code(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Opens a socket for each queue, and has the packets for `addresses` handed to them.
pub(super) fn open(config: &XdpConfig, addresses: &[SocketAddr]) -> Result<Opened, SourceError> {
    let what = format!("interface {}", config.interface);
    let interface = Interface::find(&config.interface).map_err(|errno| {
        let help = "`ip link` lists those that there are";
        refused(&what, &errno.into(), help)
    })?;
    let mtu = interface
        .mtu()
        .map_err(|errno| refused(&what, &errno.into(), "its MTU cannot be read"))?;
    let packet = longest(mtu, config.chunk_bytes());
    let has_pieces = packet > 0;
    let queues = &config.queues.0;
    let most = queues.iter().max().map_or(1, |queue| queue + 1);
    let map = bpf::socket_map(most).map_err(|error| privilege(&what, &error))?;
    let code = program::assemble(
        addresses,
        List::or_none(config.from.as_ref()),
        map.as_raw_fd(),
    );
    let mut log = vec![0; 1 << 16];
    let program = bpf::load(&code, has_pieces, &mut log).map_err(|error| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        match String::from_utf8_lossy(&log[..end]).trim() {
            "" if has_pieces && error.kind() == io::ErrorKind::InvalidInput => {
                refused(&what, &error, &longer_than_a_chunk(config, mtu))
            }
            "" => privilege(&what, &error),
            log => refused(&what, &error, &format!("the kernel's verifier says: {log}")),
        }
    })?;
    let mut told = Vec::new();
    let (link, hook) = attach(config, &interface, &program, &what, &mut told)?;
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
            busy_poll: config.busy_poll.0,
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
        told.extend(memory.granted().refused.iter().cloned());
        let socket = bind(&memory, &options)
            .map_err(|(step, errno)| unopened(&what, step, errno, config, &interface, mtu))?;
        sockets.push(socket);
    }
    // From here on packets come, in all queues at once.
    for (socket, queue) in sockets.iter().zip(queues) {
        bpf::map_socket(map.as_fd(), *queue, socket.as_fd())
            .map_err(|error| privilege(&what, &error))?;
    }
    let copies = match sockets
        .iter()
        .filter(|socket| socket.is_zero_copy())
        .count()
    {
        0 => "the kernel copies them",
        n if n == sockets.len() => "no copy by the kernel",
        _ => "the kernel copies those of some queues",
    };
    let place = match hook {
        Hook::Driver => "in the driver",
        Hook::Generic => "behind the driver",
    };
    told.push(format!(
        "packets of {} are picked {place}, {copies}",
        interface.name()
    ));
    Ok(Opened {
        sockets,
        attached: Attached { _link: link },
        told,
        packet,
    })
}

/// Opens a socket; a queue that is taken is asked for again for a while, because the kernel takes a moment to take it from a
/// process that has ended.
fn bind(memory: &Arc<Region>, options: &Options) -> Result<XdpSocket, (Step, Errno)> {
    let start = Instant::now();
    loop {
        match XdpSocket::open(memory.clone(), options) {
            Err((Step::Bind, Errno::BUSY)) if start.elapsed() < RELEASE => {
                std::thread::sleep(RELEASE / 50);
            }
            done => return done,
        }
    }
}

/// Ties the program to the interface.
fn attach(
    config: &XdpConfig,
    interface: &Interface,
    program: &OwnedFd,
    what: &str,
    told: &mut Vec<String>,
) -> Result<(OwnedFd, Hook), SourceError> {
    let name = interface.name();
    let try_at = |hook| bpf::attach(program.as_fd(), interface.index(), hook);
    let taken = |error: io::Error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY | Errno::EXIST) => refused(
            what,
            &error,
            &format!(
                "another program (XDP) picks its packets already, of another daq or of something else: \
                 `ip -details link show dev {name}` and `bpftool net` name it. Stop the process that holds it; or, where \
                 `bpftool link` lists it as link N, `bpftool link detach id N`, and where it does not, \
                 `ip link set dev {name} xdp off`"
            ),
        ),
        _ if code(&error) == libc::EPERM => privilege(what, &error),
        _ => refused(
            what,
            &error,
            &format!(
                "its driver does not take a program that picks packets; have `attach = \"generic\"`, and for packets \
                 longer than a page an MTU of at most 3500: `ip link set dev {name} mtu 3500`"
            ),
        ),
    };
    if config.attach != Attach::Generic {
        match try_at(Hook::Driver) {
            Ok(link) => return Ok((link, Hook::Driver)),
            Err(error)
                if config.attach == Attach::Native
                    || matches!(code(&error), libc::EBUSY | libc::EEXIST | libc::EPERM) =>
            {
                return Err(taken(error));
            }
            Err(error) => {
                let error = match code(&error) {
                    NOT_SUPPORTED => io::Error::from_raw_os_error(libc::EOPNOTSUPP),
                    _ => error,
                };
                told.push(format!("the driver of {name} takes no program: {error}"));
            }
        }
    }
    let link = try_at(Hook::Generic).map_err(taken)?;
    Ok((link, Hook::Generic))
}

fn privilege(what: &str, error: &io::Error) -> SourceError {
    let help = match code(error) {
        libc::EPERM | libc::EACCES => {
            "picking packets takes CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW: \
             `sudo setcap cap_net_admin,cap_bpf,cap_net_raw,cap_ipc_lock+ep $(which daq)`, or \
             `AmbientCapabilities=` in the unit"
        }
        libc::EINVAL | libc::ENOSYS => {
            "this kernel loads no programs that hand packets to sockets: it takes Linux 5.11 with CONFIG_BPF_SYSCALL and \
             CONFIG_XDP_SOCKETS"
        }
        _ => "the source `udp` receives the same packets without it",
    };
    refused(what, error, help)
}

fn longer_than_a_chunk(config: &XdpConfig, mtu: usize) -> String {
    let chunk = config.chunk_bytes();
    let most = chunk - HEADROOM - ETHERNET;
    format!(
        "packets of MTU {mtu} do not fit into chunks of {chunk} bytes (of which the kernel keeps {HEADROOM}), and packets \
         in several chunks take Linux 6.6 and a driver that makes them: `ip link set dev {} mtu {most}`{}",
        config.interface,
        if chunk < 4096 {
            ", or `chunk = \"4 KiB\"`"
        } else {
            ""
        }
    )
}

/// Why there is no socket for a queue.
fn unopened(
    what: &str,
    step: Step,
    errno: Errno,
    config: &XdpConfig,
    interface: &Interface,
    mtu: usize,
) -> SourceError {
    let error = io::Error::from(errno);
    let has_pieces = longest(mtu, config.chunk_bytes()) > 0;
    let help = match (step, errno) {
        (Step::Socket, Errno::AFNOSUPPORT) => {
            "this kernel has no sockets for XDP (CONFIG_XDP_SOCKETS)".to_owned()
        }
        (_, Errno::PERM | Errno::ACCESS) => return privilege(what, &error),
        (Step::Memory, Errno::NOBUFS | Errno::NOMEM) => {
            "it may not pin so much memory: raise the limit (`ulimit -l`, `LimitMEMLOCK=` in the unit), grant \
             CAP_IPC_LOCK, or lower `packets`"
                .to_owned()
        }
        (Step::Bind, Errno::BUSY) => format!(
            "another program has a socket on this queue: `ss --xdp -p` names it; stop it, or take another queue: \
             `queues = [N]`, to which `ethtool -N {} flow-type udp4 dst-port PORT action N` sends packets",
            interface.name()
        ),
        (Step::Bind, Errno::OPNOTSUPP) if config.mode == Mode::ZeroCopy => {
            "its driver does not write to shared memory (here): have `mode = \"auto\"`, which lets the kernel copy"
                .to_owned()
        }
        (Step::Bind, Errno::INVAL | Errno::OPNOTSUPP) if has_pieces => {
            longer_than_a_chunk(config, mtu)
        }
        (Step::Bind, Errno::INVAL) => match interface.queues() {
            Some(queues) => format!(
                "{} has receive queues: {queues}, counted from 0; `ethtool -L {0} combined N` changes that where it can",
                interface.name()
            ),
            None => format!(
                "`ethtool -l {}` tells whether it has this queue",
                interface.name()
            ),
        },
        (Step::Bind, Errno::NETDOWN) => {
            format!("it is down: `ip link set dev {} up`", interface.name())
        }
        _ => "the source `udp` receives the same packets without it".to_owned(),
    };
    refused(what, &error, &help)
}
