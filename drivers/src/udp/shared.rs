//! A port that several sources share, each of which receives its own streams.
//!
//! ```text
//!                 ┌─▶ socket of source 0 (thread 0)
//!   UDP port ─────┤        Linux runs a program for each datagram, which reads the stream and selects the socket
//!                 └─▶ socket of source 1 (thread 1)
//! ```
//! The first socket also receives the streams that belong to no source; its source rejects them.
//!
//! Linux numbers the sockets of a port in the order in which they were opened, and renumbers them if one is closed. So all sockets
//! stay open until the last source ends. Datagrams are not coalesced, because a coalesced message may contain several streams.

use crate::packet::Selector;
use crate::sys::socket::{Options, SocketError, UdpSocket};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The ports that sources of this process share.
static PORTS: Mutex<Vec<(SocketAddr, Weak<SharedPort>)>> = Mutex::new(Vec::new());

/// A port, with the sockets of its sources in the order in which they were opened.
#[derive(Debug)]
pub(super) struct SharedPort(Mutex<Vec<(Arc<UdpSocket>, Selector)>>);

impl SharedPort {
    /// Opens another socket on `address` for the streams `streams`.
    pub(super) fn open(
        address: SocketAddr,
        streams: &Selector,
        options: &Options,
    ) -> Result<(Arc<UdpSocket>, Arc<Self>), SocketError> {
        let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|(_, port)| port.strong_count() > 0);
        let known = ports.iter().find(|(other, _)| *other == address);
        let known = known.and_then(|(_, port)| port.upgrade());
        if known.is_none() {
            // Opening a shared port succeeds even if another process uses it.
            let alone = Options {
                reuse_port: false,
                receive_buffer: 0,
                ..options.clone()
            };
            UdpSocket::open(address, &alone)?;
        }
        let options = Options {
            reuse_port: true,
            coalesce: false,
            // The first socket also receives the streams of no source, which the source rejects and counts.
            streams: known.is_some().then(|| streams.clone()),
            ..options.clone()
        };
        let socket = Arc::new(UdpSocket::open(address, &options)?);
        let port = known.unwrap_or_else(|| {
            let port = Arc::new(Self(Mutex::default()));
            ports.push((address, Arc::downgrade(&port)));
            port
        });
        port.add(&socket, streams)
            .map_err(|error| SocketError::Call {
                action: "select the socket of each stream",
                address,
                source: Errno::from_io_error(&error).unwrap_or(Errno::INVAL),
            })?;
        Ok((socket, port))
    }

    fn add(&self, socket: &Arc<UdpSocket>, streams: &Selector) -> std::io::Result<()> {
        let mut sockets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.push((socket.clone(), streams.clone()));
        let selectors: Vec<_> = sockets.iter().map(|(_, streams)| streams).collect();
        socket.select(&selectors)
    }
}
