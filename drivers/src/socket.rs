//! What the sources share that receive from Linux sockets: their keys, the drop counter and the senders.

use crate::sender::{self, Allowed, SenderWatch, message_of};
use crate::sys::recv::RecvBatch;
use crate::sys::socket::{Options, UdpSocket};
use daq_core::config::List;
use daq_core::config::Problem;
use daq_core::reorder::ReorderWindow;
use daq_core::source::{Polled, SourceError};
use daq_core::units::{ByteSize, Span};
use schemars::JsonSchema;
use serde::Deserialize;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Default size of the receive buffer of a socket.
pub(crate) const RECEIVE_BUFFER: ByteSize = ByteSize(64 << 20);
/// Minimum time between two reads of a socket's drop counter.
const DROPS_INTERVAL: Duration = Duration::from_millis(1);

/// A group of keys of each source that receives from Linux sockets.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SocketKeys {
    /// Senders whose packets are accepted: addresses, networks, or addresses with a port, such as `["10.0.0.5",
    /// "10.1.0.0/16", "10.0.0.7:4000"]`; by default every sender. Linux drops the other packets and counts them among the drops
    /// of the socket, not among `rejected`; the XDP program of a source `xdp` drops them without counting them. Not for queue
    /// pairs, which accept only packets with their number and key.
    pub from: Option<List<Allowed>>,
    /// Size of the receive buffer of each socket, which stores packets while the thread is delayed. `net.core.rmem_max` limits
    /// the size unless the process has CAP_NET_ADMIN; a smaller granted size is logged. A source `xdp` uses it only for packets
    /// that arrive through the Linux network stack: packets of other queues, and fragments.
    pub receive_buffer: Option<ByteSize>,
    /// Maximum time that a receive call polls the NIC instead of waiting for interrupts, such as `"50 us"`, if the driver of the
    /// NIC supports polling. The default is the setting of the system; a source `xdp` uses interrupts by default.
    #[serde(default)]
    pub busy_poll: Span,
}

impl SocketKeys {
    /// Returns the senders whose packets are accepted; empty for every sender.
    pub(crate) fn from(&self) -> &[Allowed] {
        List::or_none(self.from.as_ref())
    }

    /// Returns the addresses of the senders whose packets are accepted, if the keys name single addresses.
    pub(crate) fn senders(&self) -> Vec<IpAddr> {
        sender::addresses(self.from())
    }

    /// Returns every problem of the keys for sockets that are bound to `listen`.
    pub(crate) fn problems(&self, listen: &[SocketAddr]) -> Vec<Problem> {
        sender::problems(self.from.as_ref(), listen)
    }

    /// Returns a note for `daq plan` if only some senders are accepted.
    pub(crate) fn note(&self) -> Option<String> {
        sender::note(self.from.as_ref())
    }

    /// Returns the options of a socket whose receive buffer has `default` bytes unless the keys set another size.
    pub(crate) fn options(&self, default: ByteSize) -> Options {
        let receive_buffer = self.receive_buffer.unwrap_or(default);
        Options {
            receive_buffer: receive_buffer.bytes().unwrap_or(usize::MAX),
            busy_poll: self.busy_poll.0,
            from: self.from().to_vec(),
            ..Options::default()
        }
    }
}

/// The socket of a receiving thread, with its drop counter and its senders.
pub(crate) struct SourceSocket {
    pub(crate) socket: Arc<UdpSocket>,
    pub(crate) senders: SenderWatch,
    drops_read: Option<Instant>,
    /// Number of drops before the source was ready, which are not evidence of lost packets.
    dropped_before: u32,
    /// How many of these drops are not yet in the ledger.
    uncounted: u32,
}

impl SourceSocket {
    pub(crate) fn new(socket: Arc<UdpSocket>, senders: SenderWatch) -> Self {
        Self {
            socket,
            senders,
            drops_read: None,
            dropped_before: 0,
            uncounted: 0,
        }
    }

    /// Declares that the first `drops` drops of the socket were packets before the source was ready, and counts them at the next
    /// call of [`read_drops`](Self::read_drops).
    pub(crate) const fn set_dropped_before(&mut self, drops: u32) {
        (self.dropped_before, self.uncounted) = (drops, drops);
    }

    /// Reports the socket's drop counter to the window, unless it was reported less than [`DROPS_INTERVAL`] ago.
    pub(crate) fn read_drops(&mut self, window: &ReorderWindow) {
        if self.uncounted > 0 {
            window.count_before_start(std::mem::take(&mut self.uncounted).into());
        }
        let now = Instant::now();
        let is_early = |read| now.saturating_duration_since(read) < DROPS_INTERVAL;
        if self.drops_read.is_some_and(is_early) {
            return;
        }
        self.drops_read = Some(now);
        if let Ok(memory) = self.socket.mem_info() {
            window.note_drops(memory.drops.wrapping_sub(self.dropped_before).into());
        }
    }

    /// Records the senders of a batch of `count` messages. `duplicate` is the index of a packet that arrived twice.
    pub(crate) fn saw(&mut self, batch: &RecvBatch, count: usize, duplicate: Option<usize>) {
        self.senders.saw(batch.sender(0));
        if let Some(duplicate) = duplicate {
            let messages = (0..count).map(|message| batch.message(message).packets().max(1));
            let sender = batch.sender(message_of(messages, duplicate));
            self.senders.duplicate(sender);
        }
    }

    /// Waits until a packet arrives, at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<Polled, SourceError> {
        let is_ready = !timeout.is_zero()
            && self
                .socket
                .wait(timeout)
                .map_err(|error| self.error(&error))?;
        Ok(if is_ready { Polled::Busy } else { Polled::Idle })
    }

    pub(crate) fn error(&self, error: &io::Error) -> SourceError {
        SourceError::new(
            format!("UDP {}", self.socket.local()),
            format!("cannot receive: {error}; `ip -s link` shows whether the interface is up"),
        )
    }
}
