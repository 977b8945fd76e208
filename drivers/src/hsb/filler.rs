//! The sensor's thread: arms it, and takes its packets from the kernel into the window.

use super::arm::{ArmError, Armed, Orders};
use super::ecb::{Ecb, Taken};
use super::placer::Placer;
use super::seen::{CONTROL_ERRORS, COUNTS, Counters, Seen};
use crate::sys::recv::{MESSAGE_BYTES, RecvBatch};
use crate::sys::socket::UdpSocket;
use daq_core::entry::SourceContext;
use daq_core::source::{Filler, Polled, SourceError};
use daq_core::window::Window;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Messages received by one system call, where each is one packet.
const MESSAGES: usize = 64;
/// Messages received by one system call, where each may be many packets: what is received is read at once, and should
/// still be in a near cache then.
const COALESCED: usize = 8;
/// The kernel's drops are read at most this often.
const DROPS: Duration = Duration::from_millis(1);

/// Bytes of its receive buffers.
pub(super) const MEMORY: usize = MESSAGES * MESSAGE_BYTES;

/// A sensor that is armed when its thread starts.
pub(super) struct Control {
    pub(super) ecb: Arc<Mutex<Ecb>>,
    pub(super) orders: Orders,
    /// No other source has the sensor meanwhile.
    pub(super) taken: Taken,
}

/// Receives from one sensor.
pub(super) struct Receiver {
    name: String,
    /// Disarms the sensor when it is dropped: before the socket that it sends to.
    armed: Option<Armed>,
    /// Given back after that.
    taken: Option<Taken>,
    control: Option<Control>,
    socket: UdpSocket,
    placer: Placer,
    batch: RecvBatch,
    /// Messages to receive at a time.
    messages: usize,
    drops_read: Option<Instant>,
    is_begun: bool,
    /// Those of [`COUNTS`], in their order.
    counters: Counters,
}

impl Receiver {
    /// A receiver for the source of `context`, of a sensor that `control` arms, if it is not armed by somebody else.
    pub(super) fn new(
        context: &SourceContext,
        socket: UdpSocket,
        placer: Placer,
        control: Option<Control>,
    ) -> Self {
        Self {
            name: context.name.clone(),
            armed: None,
            taken: None,
            control,
            socket,
            placer,
            batch: RecvBatch::plain(MESSAGES, MESSAGE_BYTES),
            messages: COALESCED,
            drops_read: None,
            is_begun: false,
            counters: std::array::from_fn(|i| context.counts.counter(COUNTS[i])),
        }
    }

    /// Receives and places what is there; whether there was anything.
    fn receive(&mut self, window: &mut Window) -> io::Result<bool> {
        let count = self.batch.recv(&self.socket, self.messages)?;
        if count == 0 {
            return Ok(false);
        }
        let batch = &self.batch;
        let mut packets = 0;
        let datagrams = (0..count).flat_map(|message| {
            let about = batch.message(message);
            packets += about.packets();
            let bytes = batch.bytes(message);
            let whole = bytes.is_empty().then_some(bytes).into_iter();
            whole.chain(bytes.chunks(about.segment.max(1)))
        });
        let before = self.placer.seen();
        self.placer.place(window, datagrams);
        self.count(before);
        self.messages = if packets > count { COALESCED } else { MESSAGES };
        Ok(true)
    }

    /// Tells what has changed since `before`.
    fn count(&self, before: Seen) {
        let seen = self.placer.seen();
        if seen != before {
            seen.tell(&self.counters);
        }
    }

    /// Reads how many messages the kernel has dropped, if it is time to.
    fn read_drops(&mut self, window: &Window) {
        let now = Instant::now();
        let is_early = |read: Instant| now.saturating_duration_since(read) < DROPS;
        if self.drops_read.is_some_and(is_early) {
            return;
        }
        self.drops_read = Some(now);
        if let Ok(memory) = self.socket.mem_info() {
            window.note_drops(memory.drops.into());
        }
    }

    fn error(&self, error: &io::Error) -> SourceError {
        SourceError::new(
            format!("UDP {}", self.socket.local()),
            format!("cannot receive: {error}; `ip -s link` shows whether the interface is up"),
        )
    }
}

impl Filler for Receiver {
    fn start(&mut self) -> Result<(), SourceError> {
        let Some(control) = self.control.take() else {
            return Ok(());
        };
        let Control { ecb, orders, taken } = control;
        self.taken = Some(taken);
        let armed = Armed::arm(ecb, orders, self.counters[CONTROL_ERRORS].clone());
        let error =
            |why: ArmError| SourceError::new(format!("sensor {}", orders.sensor), why.to_string());
        let armed = armed.map_err(error)?;
        tracing::info!(
            "source {}: sensor {} sends to {}",
            self.name,
            orders.sensor,
            orders.host
        );
        self.armed = Some(armed);
        Ok(())
    }

    fn fill(&mut self, window: &mut Window, patience: Duration) -> Result<Polled, SourceError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            window.await_times();
        }
        let got = self.receive(window).map_err(|why| self.error(&why))?;
        if !got || window.wants_drops() {
            self.read_drops(window);
        }
        if got {
            return Ok(Polled::Busy);
        }
        let ready =
            !patience.is_zero() && self.socket.wait(patience).map_err(|why| self.error(&why))?;
        Ok(if ready { Polled::Busy } else { Polled::Idle })
    }
}
