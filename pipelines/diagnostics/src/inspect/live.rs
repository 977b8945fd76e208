//! Receives packets from an interface or from a UDP socket for a limited time.

use super::Report;
use super::flow::Flows;
use super::section::Origin;
use daq_core::entry::Registry;
use daq_core::units::deadline;
use daq_drivers::packet::pcap::{Datagram, IpDatagrams, Skipped};
use daq_drivers::sys::packet_socket::{IpVersion, PacketSocket, PacketSocketError};
use daq_drivers::sys::recv::RecvBatch;
use daq_drivers::sys::socket::{Interface, Options, SocketError, Timestamps, UdpSocket};
use daq_pipelines::console::Progress;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Number of packets that are received at a time, and the size in bytes of the buffer of each.
const BATCH: usize = 32;
const PACKET: usize = 1 << 16;
/// Requested receive buffer of the UDP socket in bytes.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Maximum time between two looks at all sockets.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The packets to receive. At least one of `interface` and `port` must be set.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// The interface to capture on, and on which the groups are joined.
    pub interface: Option<String>,
    /// Receive only packets to this port.
    pub port: Option<u16>,
    /// Multicast groups to join.
    pub groups: Vec<IpAddr>,
    /// How long to receive.
    pub time: Duration,
}

/// Reason why packets cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The interface cannot be opened.
    #[error(transparent)]
    Interface(#[from] PacketSocketError),
    /// Capturing needs a privilege, and without a port there is no other way.
    #[error(
        "no permission to capture on {interface}: run as root, grant CAP_NET_RAW (`sudo setcap cap_net_raw+ep {program}`), or set \
         --port and, for multicast, --group: a UDP socket needs no permission"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// The path of this program.
        program: String,
    },
    /// The UDP socket cannot be opened.
    #[error("cannot receive UDP {address}: {source}")]
    Socket {
        /// The address of the socket.
        address: SocketAddr,
        /// The error, which contains the fix.
        source: SocketError,
    },
    /// Receiving failed.
    #[error("cannot receive: {0}; `ip link` shows whether the interface is up")]
    Receive(#[from] io::Error),
}

/// Receives packets for a time and examines them. Captures on the interface if that is permitted; otherwise, a UDP socket
/// receives packets to the port. The entries of `registry` recognise the packets.
pub fn live(
    options: &LiveOptions,
    registry: &Registry,
    progress: &Progress,
) -> Result<Report, LiveError> {
    progress.timed_rounds(1, options.time);
    progress.step(None);
    let mut notes = Vec::new();
    if let Some(interface) = &options.interface {
        let versions = [IpVersion::V4, IpVersion::V6];
        let sockets: Result<Vec<_>, _> = versions
            .into_iter()
            .map(|version| PacketSocket::open(interface, version))
            .collect();
        match sockets {
            Ok(sockets) => return capture(interface, &sockets, options, registry, notes),
            Err(PacketSocketError::NotPermitted) if options.port.is_none() => {
                let program = std::env::current_exe().unwrap_or_else(|_| "daq".into());
                return Err(LiveError::NotPermitted {
                    interface: interface.clone(),
                    program: program.display().to_string(),
                });
            }
            Err(PacketSocketError::NotPermitted) => notes.push(
                "no permission to capture (CAP_NET_RAW), so a UDP socket receives the packets of this port".to_owned(),
            ),
            Err(error) => return Err(error.into()),
        }
    }
    receive(options, registry, notes)
}

/// Examines a copy of the packets that arrive at `interface`.
fn capture(
    interface: &str,
    sockets: &[PacketSocket],
    options: &LiveOptions,
    registry: &Registry,
    mut notes: Vec<String>,
) -> Result<Report, LiveError> {
    // A switch sends packets of a group only to hosts that joined it.
    let joined = match options.port.filter(|_| !options.groups.is_empty()) {
        Some(_) => Some(udp(options, 0)?),
        None => None,
    };
    let mut flows = Flows::new(registry.recognisers());
    // Fragments of IPv4 and IPv6 cannot be confused, because their addresses differ.
    let mut datagrams = IpDatagrams::default();
    let mut batch = RecvBatch::plain(BATCH, PACKET);
    let end = deadline(options.time);
    while let Some(left) = end
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
    {
        let mut count = 0;
        for socket in sockets {
            count += take(&mut batch, socket, |batch, message| {
                let ns = batch.message(message).timestamp_ns.unwrap_or(0);
                let found = datagrams.add(batch.bytes(message), ns);
                let is_wanted = |found: &Datagram<'_>| {
                    options
                        .port
                        .is_none_or(|port| port == found.destination.port())
                };
                match found {
                    Some(found) if is_wanted(&found) => flows.add(&found),
                    Some(found) => flows.skip(&found),
                    None => {}
                }
            })?;
        }
        if count == 0 {
            sockets[0].wait(left.min(POLL_INTERVAL))?;
        }
    }
    drop(joined);
    let dropped: u32 = sockets
        .iter()
        .map(|socket| socket.drops().unwrap_or(0))
        .sum();
    if dropped > 0 {
        notes.push(format!(
            "Linux dropped {dropped} packets of this capture because daq inspect was too slow, so losses below may be false"
        ));
    }
    let origin = Origin::Live {
        interface: Some(interface),
    };
    Ok(Report::new(
        format!("interface {interface}"),
        &origin,
        registry,
        &flows,
        datagrams.skipped(),
        notes,
    ))
}

/// Opens UDP sockets for `port`; 0 selects a free port.
fn udp(options: &LiveOptions, port: u16) -> Result<UdpSocket, LiveError> {
    let any: IpAddr = if options.groups.iter().any(IpAddr::is_ipv6) {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    let address = SocketAddr::new(any, port);
    let socket = Options {
        receive_buffer: RECEIVE_BUFFER,
        timestamps: Timestamps::Software,
        groups: options.groups.clone(),
        interface: options.interface.as_deref().map(Interface::from),
        ..Options::default()
    };
    UdpSocket::open(address, &socket).map_err(|source| LiveError::Socket { address, source })
}

/// Examines the packets that arrive at a UDP socket.
fn receive(
    options: &LiveOptions,
    registry: &Registry,
    mut notes: Vec<String>,
) -> Result<Report, LiveError> {
    let port = options.port.unwrap_or(0);
    let socket = udp(options, port)?;
    // The socket does not report the destination of each packet.
    let destination = match options.groups.as_slice() {
        [group] => SocketAddr::new(*group, port),
        _ => socket.local(),
    };
    let mut flows = Flows::new(registry.recognisers());
    let mut batch = RecvBatch::plain(BATCH, PACKET);
    batch.name_all(true);
    let end = deadline(options.time);
    while let Some(left) = end
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
    {
        let count = take(&mut batch, &socket, |batch, message| {
            let Some(source) = batch.sender(message) else {
                return;
            };
            flows.add_single(&Datagram {
                timestamp_ns: batch.message(message).timestamp_ns.unwrap_or(0),
                source,
                destination,
                checksum: 0,
                payload: batch.bytes(message),
            });
        })?;
        if count == 0 {
            socket.wait(left.min(POLL_INTERVAL))?;
        }
    }
    let dropped = socket.mem_info().map_or(0, |memory| memory.drops);
    if dropped > 0 {
        notes.push(format!(
            "Linux dropped {dropped} packets because daq inspect was too slow, so losses below may be false"
        ));
    }
    let origin = Origin::Live {
        interface: options.interface.as_deref(),
    };
    Ok(Report::new(
        format!("UDP port {port}"),
        &origin,
        registry,
        &flows,
        Skipped::default(),
        notes,
    ))
}

/// Receives waiting packets from `socket` and passes each to `use_packet`. Returns the number of packets.
fn take(
    batch: &mut RecvBatch,
    socket: &impl AsFd,
    mut use_packet: impl FnMut(&RecvBatch, usize),
) -> Result<usize, LiveError> {
    let count = batch.recv(socket, BATCH)?;
    (0..count).for_each(|message| use_packet(batch, message));
    Ok(count)
}
