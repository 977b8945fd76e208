//! The receiving thread of a sensor: arms the sensor, and places the packets of its socket in the window.

use super::counts::{SensorCounts, Statistics};
use super::placer::Placer;
use super::supervisor::{Link, Parts, Rearm, Supervisor, Target};
use crate::packet::datagram::split_message;
use crate::sender::SenderWatch;
use crate::socket::SourceSocket;
use crate::sys::recv::{MESSAGE_BYTES, RecvBatch};
use crate::sys::socket::UdpSocket;
use daq_core::entry::SourceContext;
use daq_core::reorder::ReorderWindow;
use daq_core::source::{Filler, Polled, SourceError};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of messages per system call if each message is one packet.
const MESSAGES: usize = 64;
/// Maximum number of messages per system call if each message may contain many coalesced packets. The number is small, so that
/// the received data is still in the CPU cache when it is placed.
const COALESCED: usize = 8;

/// Size of the receive buffers in bytes.
pub(super) const MEMORY: usize = MESSAGES * MESSAGE_BYTES;

/// The parameters for arming the sensor of a source.
pub(super) struct Supervision {
    pub(super) target: Target,
    pub(super) rearm: Rearm,
    /// Silence after which the registers are read back; zero disables this check.
    pub(super) rearm_after: Duration,
}

impl Supervision {
    /// Creates a supervisor for the source `name`; it does not arm the sensor yet.
    pub(super) fn start(
        self,
        name: &str,
        counters: &SensorCounts,
    ) -> Result<Supervisor, SourceError> {
        let Self {
            target,
            rearm,
            rearm_after,
        } = self;
        let supervisor = Supervisor::new(Parts {
            name: name.to_owned(),
            target,
            rearm,
            rearm_after,
            errors: counters.control_errors.clone(),
            rearmed: counters.rearmed.clone(),
        });
        supervisor.map_err(|error| {
            SourceError::new(
                format!("source {name}"),
                format!("cannot start the thread that arms the sensor: {error}"),
            )
        })
    }
}

/// Receives from one sensor.
pub(super) struct Receiver {
    /// Disarms the sensor when it is dropped. Must be dropped before the socket that the sensor sends to.
    supervisor: Option<Supervisor>,
    link: Option<Arc<Link>>,
    /// The last key change that was applied.
    generation: u64,
    socket: SourceSocket,
    placer: Placer,
    batch: RecvBatch,
    /// Maximum number of messages per receive call.
    messages: usize,
    is_started: bool,
    counters: SensorCounts,
}

impl Receiver {
    /// Creates a receiver for the source of `context`. `supervision` is `None` if another program arms the sensor.
    pub(super) fn new(
        context: &SourceContext,
        socket: UdpSocket,
        placer: Placer,
        supervision: Option<Supervision>,
    ) -> Result<Self, SourceError> {
        let senders = SenderWatch::new(&context.name, socket.local());
        let socket = SourceSocket::new(Arc::new(socket), senders);
        let counters = SensorCounts::of(&context.counts);
        let supervisor = supervision
            .map(|supervision| supervision.start(&context.name, &counters))
            .transpose()?;
        Ok(Self {
            link: supervisor
                .as_ref()
                .map(|supervisor| supervisor.link().clone()),
            supervisor,
            generation: 0,
            socket,
            placer,
            batch: RecvBatch::plain(MESSAGES, MESSAGE_BYTES),
            messages: COALESCED,
            is_started: false,
            counters,
        })
    }

    /// Receives and places the available packets. Returns whether any packet was available.
    fn receive(&mut self, window: &mut ReorderWindow) -> io::Result<bool> {
        self.batch.name_all(self.socket.senders.wants_all());
        let count = self.batch.recv(&self.socket.socket, self.messages)?;
        if count == 0 {
            return Ok(false);
        }
        let batch = &self.batch;
        let mut packets = 0;
        let datagrams = (0..count).flat_map(|message| {
            let about = batch.message(message);
            packets += about.packets();
            split_message(batch.bytes(message), about.segment)
        });
        // This check must follow the receive call, because packets with a new key are sent after the key was stored.
        if let Some(link) = &self.link
            && let Some(rkey) = link.renewed(&mut self.generation)
        {
            self.placer.rearm(window, rkey);
        }
        let before = self.placer.seen();
        let duplicate = self.placer.place(window, datagrams);
        self.socket.saw(batch, count, duplicate);
        if let Some(link) = &self.link {
            link.set_accepted(self.placer.accepted());
        }
        self.count(before);
        self.messages = if packets > count { COALESCED } else { MESSAGES };
        Ok(true)
    }

    /// Updates the counters if they changed since `before`.
    fn count(&self, before: Statistics) {
        let seen = self.placer.seen();
        if seen != before {
            seen.store(&self.counters);
        }
    }
}

impl Filler for Receiver {
    fn start(&mut self) -> Result<(), SourceError> {
        // If a sensor cannot be armed, the other sources continue and the supervisor retries.
        if let Some(supervisor) = &self.supervisor {
            supervisor.start();
        }
        Ok(())
    }

    fn fill(
        &mut self,
        window: &mut ReorderWindow,
        timeout: Duration,
    ) -> Result<Polled, SourceError> {
        if !std::mem::replace(&mut self.is_started, true) {
            window.await_times();
        }
        let got = self
            .receive(window)
            .map_err(|why| self.socket.error(&why))?;
        if !got || window.wants_drops() {
            self.socket.read_drops(window);
        }
        if got {
            return Ok(Polled::Busy);
        }
        self.socket.wait(timeout)
    }

    fn finish(&mut self, window: &mut ReorderWindow) {
        self.placer.finish(window);
    }
}
