//! The sensor's thread: arms it, and takes its packets from the kernel into the window.

use super::placer::Placer;
use super::seen::{CONTROL_ERRORS, COUNTS, Counters, REARMED, Seen};
use super::supervisor::{Link, Parts, Rearm, Supervisor, Target};
use crate::sender::{SenderWatch, message_of};
use crate::sys::recv::{MESSAGE_BYTES, RecvBatch};
use crate::sys::socket::UdpSocket;
use daq_core::entry::SourceContext;
use daq_core::reorder::ReorderWindow;
use daq_core::source::{Filler, Polled, SourceError};
use std::io;
use std::sync::Arc;
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

/// How the sensor of a source is kept armed.
pub(super) struct Supervision {
    pub(super) target: Target,
    pub(super) rearm: Rearm,
    /// Silence after which registers are read back; zero for never.
    pub(super) rearm_after: Duration,
}

impl Supervision {
    /// A supervisor for the source `name`, which arms nothing yet.
    pub(super) fn start(self, name: &str, counters: &Counters) -> Result<Supervisor, SourceError> {
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
            errors: counters[CONTROL_ERRORS].clone(),
            rearmed: counters[REARMED].clone(),
        });
        supervisor.map_err(|error| {
            SourceError::new(
                format!("source {name}"),
                format!("cannot start the thread that arms its sensor: {error}"),
            )
        })
    }
}

/// Receives from one sensor.
pub(super) struct Receiver {
    /// Disarms the sensor when it is dropped: before the socket that it sends to.
    supervisor: Option<Supervisor>,
    link: Option<Arc<Link>>,
    /// The last change of the key that was followed.
    generation: u64,
    socket: UdpSocket,
    placer: Placer,
    batch: RecvBatch,
    senders: SenderWatch,
    /// Messages to receive at a time.
    messages: usize,
    drops_read: Option<Instant>,
    is_begun: bool,
    /// Those of [`COUNTS`], in their order.
    counters: Counters,
}

impl Receiver {
    /// A receiver for the source of `context`, of a sensor that is armed as `supervision` says unless another program arms it.
    pub(super) fn new(
        context: &SourceContext,
        socket: UdpSocket,
        placer: Placer,
        supervision: Option<Supervision>,
    ) -> Result<Self, SourceError> {
        let counters = std::array::from_fn(|i| context.counts.counter(COUNTS[i]));
        let supervisor = supervision
            .map(|supervision| supervision.start(&context.name, &counters))
            .transpose()?;
        Ok(Self {
            link: supervisor
                .as_ref()
                .map(|supervisor| supervisor.link().clone()),
            supervisor,
            generation: 0,
            senders: SenderWatch::new(&context.name, socket.local()),
            socket,
            placer,
            batch: RecvBatch::plain(MESSAGES, MESSAGE_BYTES),
            messages: COALESCED,
            drops_read: None,
            is_begun: false,
            counters,
        })
    }

    /// Receives and places what is there; whether there was anything.
    fn receive(&mut self, window: &mut ReorderWindow) -> io::Result<bool> {
        self.batch.name_all(self.senders.wants_all());
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
        self.senders.saw(batch.sender(0));
        // After the packets were received: those with a new key were sent after it was stored.
        if let Some(link) = &self.link
            && let Some(rkey) = link.renewed(&mut self.generation)
        {
            self.placer.rearm(window, rkey);
        }
        let before = self.placer.seen();
        let duplicate = self.placer.place(window, datagrams);
        if let Some(duplicate) = duplicate {
            let messages = (0..count).map(|message| batch.message(message).packets().max(1));
            self.senders
                .duplicate(batch.sender(message_of(messages, duplicate)));
        }
        if let Some(link) = &self.link {
            link.set_accepted(self.placer.accepted());
        }
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
    fn read_drops(&mut self, window: &ReorderWindow) {
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
        // A sensor that cannot be armed must not end the others: the supervisor tries again.
        if let Some(supervisor) = &self.supervisor {
            supervisor.start();
        }
        Ok(())
    }

    fn fill(
        &mut self,
        window: &mut ReorderWindow,
        patience: Duration,
    ) -> Result<Polled, SourceError> {
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

    fn finish(&mut self, window: &mut ReorderWindow) {
        self.placer.finish(window);
    }
}
