//! The sending side of a stream: sends frames of a ring to a receiver on another host.
//!
//! ```text
//!   lease ──post──▶ rail n % rails ──▶ receiver      within the receiver's credits
//!     ▲               │ completions
//!     └── sent count ◀┘                               a frame counts as sent once its requests have completed
//! ```
//! # Guarantees
//! - No frame is sent beyond the receiver's credits.
//! - On a reliable connection a frame counts as sent once the receiver's NIC has acknowledged it, or the receiver has
//!   confirmed it after an interruption. Missing frames that are still leased are sent again; none is delivered twice.
//! - When [`Sender::send`] fails, no NIC reads the slots of the lease any more: either no request was in flight, or the
//!   queue pairs were destroyed.
//! - An unavailable receiver is reported as an error within the configured time. No call to the sender blocks forever.
//! - While the sender is connected, sending a frame allocates no memory, takes no lock and makes no system call. Over TCP, a
//!   batch of frames needs one system call.
//!
//! # Not guaranteed
//! - On unreliable services, delivery of a frame: the frame was sent, but may be lost. The receiver detects missing
//!   frames by their numbers.

mod connection;
mod limits;
mod memory;
mod rail;
#[cfg(test)]
mod tests;

use crate::connect::Connector;
use crate::stream::after;
use crate::verbs::{Nic, Service, Status, Transport, VerbsError};
pub use crate::wire::MAX_RAILS;
use crate::wire::checksum;
use crate::wire::{Checksums, KeptNames, MAX_PACKETS_PER_FRAME, Mode, Record, SamplePlaces};
use connection::{Connection, Reconnector, Terms};
use daq_core::frame::FrameMeta;
use daq_core::ledger::Counter;
use daq_core::log_limit::{LogLimit, Suppressed};
use daq_core::notify::Wait;
use daq_core::region::{Region, RegionError};
use daq_core::ring::Lease;
use daq_core::units::counted;
use limits::{apply_limits, probe_queue_pairs};
use memory::{Memory, Records};
use rail::{FramePost, Rail, Source};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum time that [`Sender::send`] waits without progress.
const SEND_TIME_LIMIT: Duration = Duration::from_millis(100);
/// Interval of keep-alive requests while no frames are sent.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Interval of the connection checks while there is no progress.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// How long a waiting thread polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// Sleep time while the sender waits for credits, which raise no event with RDMA.
const IDLE_SLEEP: Duration = Duration::from_micros(50);
/// Maximum time of one wait for a completion.
const COMPLETION_WAIT: Duration = Duration::from_millis(1);
/// Minimum time after which unacknowledged requests count as lost.
const MIN_ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of frames of a rail between two signaled requests.
const SIGNAL_EVERY: u32 = 4;

/// Options of a sender.
#[derive(Clone, Debug)]
pub struct Options {
    /// The receiver's name in log messages and errors.
    pub peer: String,
    /// The transfer mode: writes into the receiver's slots, or messages.
    pub mode: Mode,
    /// The transport service of the queue pairs.
    pub service: Service,
    /// Maximum payload of a frame in bytes.
    pub slot: usize,
    /// Maximum number of packets per frame; 0 if frames do not consist of packets.
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep.
    pub kept: KeptNames,
    /// The places of samples in frames; the default if they are not known.
    pub places: SamplePlaces,
    /// Payloads and records up to this number of bytes are sent inline, if the NICs support inline data.
    pub inline: u32,
    /// Maximum size of one write in bytes. The limit lets large frames of several streams share a link.
    pub chunk: usize,
    /// Maximum number of frames in flight per rail, at least 1. Lowered if a NIC supports fewer.
    pub depth: u32,
    /// Maximum number of frames per lease, which also limits the frames in flight.
    pub burst: usize,
    /// How the sender waits for the receiver.
    pub wait: Wait,
    /// Time without progress after which a receiver is reported as unavailable.
    pub timeout: Duration,
    /// True: the ring's reader gets copies of the frames instead of the memory of the ring.
    pub copied: bool,
    /// Maximum size of a message in bytes; set by [`Sender::new`].
    pub message: u64,
    /// True: each frame has checksums, which the receiver verifies. Only over TCP.
    pub has_checksums: bool,
}

impl Options {
    /// Returns options for reliable writes of frames of up to `slot` bytes with up to `packets_per_frame` packets. All
    /// other options have their default values.
    pub fn new(peer: impl Into<String>, slot: usize, packets_per_frame: u32) -> Self {
        Self {
            peer: peer.into(),
            mode: Mode::Write,
            service: Service::Rc,
            slot,
            packets_per_frame,
            kept: KeptNames::default(),
            places: SamplePlaces::default(),
            inline: 256,
            chunk: 1 << 20,
            depth: 128,
            burst: usize::MAX,
            wait: Wait::default(),
            timeout: Duration::from_secs(1),
            copied: false,
            message: u64::MAX,
            has_checksums: false,
        }
    }

    /// Returns the maximum number of requests per frame.
    fn requests_per_frame(&self) -> u32 {
        if self.service != Service::Rc {
            return 2;
        }
        let writes = u32::try_from(self.slot.div_ceil(self.chunk)).unwrap_or(u32::MAX - 1);
        match self.mode {
            Mode::Write => writes.saturating_add(1),
            Mode::Send => 1,
        }
    }
}

/// Error: a sender cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SenderError {
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A NIC cannot read GPU memory.
    #[error("{0}; set `path = \"staged\"` to send through host memory")]
    Registering(#[from] crate::registration::UnregistrableError),
    /// No memory for records is available.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The connecting thread cannot be started.
    #[error("cannot start the thread that connects: {0}")]
    Thread(#[from] std::io::Error),
    /// The options cannot be satisfied.
    #[error("{0}")]
    Options(String),
}

/// Error: the receiver is currently unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The receiver has granted no credits for longer than the timeout.
    #[error("the receiver accepts no frames because its ring is full")]
    Full,
    /// There is no connection. Contains the reason and the fix, without the receiver's address.
    #[error("{0}")]
    Disconnected(String),
}

/// The counters of a sender.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Number of established connections.
    pub connections: Counter,
    /// Number of times that the sender started to wait for credits.
    pub stalls: Counter,
}

/// The reason why a connection failed.
#[derive(Debug)]
enum LinkError {
    Verbs(VerbsError),
    Completion(Status),
    Reason(String),
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Verbs(error) => error.fmt(f),
            Self::Reason(why) => f.write_str(why),
            Self::Completion(status) => {
                let why = match status {
                    Status::Unanswered => {
                        "the receiver does not answer: its process ended or the link is down"
                    }
                    Status::NotReady => "the receiver posted no receive before the retries ended",
                    Status::RemoteAccess => {
                        "the receiver rejected the remote key or address, because the receiver registered its memory again"
                    }
                    Status::RemoteOperation => "the receiver's NIC failed during the operation",
                    Status::Local => {
                        "the local NIC rejected access to local memory; this is a defect of daq"
                    }
                    Status::Flushed => "the queue pair failed during an earlier request",
                    // TCP has no other status.
                    Status::Success | Status::Other(0) => "the connection failed",
                    Status::Other(_) => "the NIC or the connection failed",
                };
                write!(f, "{why} ({})", status.name())
            }
        }
    }
}

/// The identity of a frame in its ring.
type FrameId = (u32, u64);

/// The sending side of a stream. The fields are dropped in order: queue pairs, then memory regions, then memory.
pub struct Sender {
    connection: Option<Connection>,
    connector: Reconnector,
    memory: Memory,
    records: Records,
    options: Options,
    rails: u64,
    /// Maximum number of frames in flight on any connection.
    window: u64,
    signal_every: u64,
    /// Number of the first frame that is neither sent nor lost.
    done: u64,
    /// Number of the next frame to post on this connection.
    posted: u64,
    /// Number of the first frame that was never posted on any connection.
    next_unposted: u64,
    /// After an interruption, the identity of frame `done` if it may have been posted before.
    uncertain: Option<FrameId>,
    /// Number of the first frame that can still be sent, for the thread that connects.
    first: Arc<AtomicU64>,
    /// Time of the last progress.
    last_progress: Instant,
    /// Time of the last check of the connection.
    checked: Instant,
    /// Time at which `check_peer` last detected new frames or sent keep-alive requests, and the value of `posted` at
    /// that time.
    last_keep_alive: (Instant, u64),
    /// True while the sender waits for credits.
    is_stalled: bool,
    /// The reason why there is no connection.
    why: String,
    counters: Counters,
    /// Limits on the log messages `connected` and `disconnected`.
    limits: (LogLimit, LogLimit),
    /// Start of the interruption whose end must be logged.
    interrupted: Option<Instant>,
}

impl Sender {
    /// Creates a sender of frames whose payload is in `ring`, with one queue pair for each of `nics`; a NIC may occur
    /// several times. Connecting starts immediately.
    pub fn new(
        nics: Vec<Arc<dyn Nic>>,
        connector: Connector,
        ring: &Arc<Region>,
        mut options: Options,
        counters: Counters,
    ) -> Result<Self, SenderError> {
        let rails = nics.len();
        if rails == 0 || rails > usize::from(MAX_RAILS) {
            return Err(SenderError::Options(format!(
                "a stream must have 1 to {MAX_RAILS} queue pairs, but has {rails}"
            )));
        }
        if options.packets_per_frame > MAX_PACKETS_PER_FRAME {
            return Err(SenderError::Options(format!(
                "`packets_per_frame` is {}, but must be at most {MAX_PACKETS_PER_FRAME}",
                options.packets_per_frame
            )));
        }
        if options.has_checksums && nics[0].transport() != Transport::Tcp {
            return Err(SenderError::Options(
                "`checksums` needs transport = \"tcp\"".to_owned(),
            ));
        }
        // A queue pair over TCP requests acknowledgements several times per window, so its window must be the real one.
        let max_depth = options.burst.div_ceil(rails);
        options.depth = options
            .depth
            .min(u32::try_from(max_depth).unwrap_or(u32::MAX));
        apply_limits(&nics, &mut options)?;
        probe_queue_pairs(&nics, &mut options)?;
        let window = rails * options.depth as usize;
        let memory = Memory::new(&nics, ring, &options, window)?;
        let records = Records::new(&nics, &options, window, options.record_shape())
            .map_err(SenderError::Options)?;
        let first = Arc::new(AtomicU64::new(0));
        let mut connector = Reconnector::new(Terms {
            connector,
            nics,
            options: options.clone(),
            window,
            first: first.clone(),
            // Each hasher has a new random seed.
            stream: std::hash::RandomState::new().build_hasher().finish() | 1,
        })?;
        connector.go();
        let now = Instant::now();
        let window = memory.window().min(window as u64);
        Ok(Self {
            connection: None,
            connector,
            records,
            rails: rails as u64,
            window,
            signal_every: u64::from((options.depth / 2).clamp(1, SIGNAL_EVERY))
                .min((window / rails as u64 / 2).max(1)),
            memory,
            options,
            done: 0,
            posted: 0,
            next_unposted: 0,
            uncertain: None,
            first,
            last_progress: now,
            checked: now,
            last_keep_alive: (now, 0),
            is_stalled: false,
            why: "not connected yet".to_owned(),
            counters,
            limits: <(LogLimit, LogLimit)>::default(),
            interrupted: None,
        })
    }

    /// Returns how the NIC reads the ring's memory, for the log.
    pub fn path(&self) -> String {
        self.memory.path()
    }

    /// Sends the frames of `lease`, starting with frame `from`. Returns the number of frames that the receiver
    /// certainly has or, on unreliable services, that were sent. Returns after about 100 ms without progress, or when all
    /// frames were posted and some were acknowledged. The number is then smaller than requested or 0, and the caller must
    /// call again with the remaining frames, in the same lease or at the start of a new lease that contains newer frames.
    ///
    /// # Errors
    /// If the receiver is unavailable. The caller may offer the frames again or drop them. Two offered frames are the
    /// same frame if their epochs and sequence numbers are equal.
    pub fn send(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, Unavailable> {
        let until = Instant::now() + SEND_TIME_LIMIT;
        let end = (lease.len() - from) as u64;
        self.match_uncertain(lease, from);
        let start = self.done;
        // The position of frame `n` in the lease does not change during this call.
        let place = |n: u64| from + usize::try_from(n - start).unwrap_or(usize::MAX);
        loop {
            if let Some(unavailable) = self.connect(until) {
                return match self.done - start {
                    0 => Err(unavailable),
                    sent => Ok(self.finish_send(sent, lease, from)),
                };
            }
            let moved = self
                .post(lease, start + end, place)
                .and_then(|posted| Ok(self.collect()? || posted));
            if self.done >= start + end {
                return Ok(self.finish_send(end, lease, from));
            }
            if moved.is_ok() && self.done > start && self.posted >= start + end {
                // The caller may have further frames, which must be posted before the last ones are acknowledged.
                return Ok(self.finish_send(self.done - start, lease, from));
            }
            match moved {
                Ok(true) => self.last_progress = Instant::now(),
                Ok(false) => match self.idle() {
                    Ok(()) if Instant::now() < until => {}
                    Ok(()) => {
                        let sent = self.done - start;
                        return if sent == 0 && self.is_backpressured() {
                            Err(Unavailable::Full)
                        } else {
                            Ok(self.finish_send(sent, lease, from))
                        };
                    }
                    Err(broken) => self.disconnect(&broken, Some((lease, place(self.done)))),
                },
                Err(broken) => self.disconnect(&broken, Some((lease, place(self.done)))),
            }
        }
    }

    /// Checks whether the receiver is still connected. Should be called about once per second while no lease is held.
    pub fn tick(&mut self) {
        self.discard_uncertain();
        if self.connection.is_none() {
            // Reconnects even if there are no frames to send.
            if let Some(answer) = self.connector.wait(Duration::ZERO) {
                self.take(answer);
            }
            return;
        }
        let checked = self.collect().and_then(|_| self.check_peer());
        if let Err(broken) = checked {
            self.disconnect(&broken, None);
        }
    }

    /// Sends the receiver a close message with the number of frames, so that the receiver also counts frames that were
    /// lost at the end. On a reliable connection all sent frames have been acknowledged before.
    pub fn finish(&mut self) {
        let frames = self.next_unposted.max(self.done);
        self.set_done(frames);
        self.connector.end(frames);
        if let Some(mut connection) = self.connection.take() {
            connection.monitor.close(frames);
        }
    }

    /// Checks whether the uncertain frames are offered again. If not, these frames are lost and their numbers are not
    /// reused.
    fn match_uncertain(&mut self, lease: &Lease<'_>, from: usize) {
        if self
            .uncertain
            .is_some_and(|name| name != frame_id(lease.frame(from).meta()))
        {
            self.discard_uncertain();
        }
        // Frames remain in flight between calls, and the time without an acknowledgement continues to count.
        if !self.is_stalled && self.posted <= self.done {
            self.last_progress = Instant::now();
        }
    }

    /// Discards the frames that may have been posted and are not offered again. Their numbers are not reused.
    fn discard_uncertain(&mut self) {
        if self.uncertain.take().is_some() {
            self.set_done(self.next_unposted);
            if self.posted < self.next_unposted && self.connection.take().is_some() {
                "the receiver waits for frames that were dropped; reconnecting"
                    .clone_into(&mut self.why);
            }
        }
    }

    fn set_done(&mut self, done: u64) {
        self.done = done;
        self.first.store(done, Ordering::Release);
    }

    /// Waits for a connection until `until`. Returns the reason if no connection was established.
    fn connect(&mut self, until: Instant) -> Option<Unavailable> {
        while self.connection.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            let Some(answer) = self.connector.wait(left) else {
                return Some(self.unavailable());
            };
            if !self.take(answer) && Instant::now() >= until {
                return Some(self.unavailable());
            }
        }
        None
    }

    /// Handles the result of a connection attempt. Returns true if frames can be sent over the new connection.
    fn take(&mut self, answer: Result<Connection, String>) -> bool {
        let mut connection = match answer {
            Ok(connection) => connection,
            Err(why) => {
                self.why = why;
                return false;
            }
        };
        let next = connection.next;
        if next > self.next_unposted {
            self.why = format!(
                "the receiver requested frame {next}, but this sink has sent only {}; reconnecting",
                counted(self.next_unposted, "frame")
            );
            return false;
        }
        if next < self.done {
            // Frames that the receiver expects were dropped in the meantime.
            "frames were dropped during the connection attempt; reconnecting"
                .clone_into(&mut self.why);
            return false;
        }
        if next > self.done {
            tracing::debug!(
                "{}: the receiver already has {} from before the interruption",
                self.options.peer,
                counted(next - self.done, "frame")
            );
        }
        self.set_done(next);
        self.posted = next;
        self.uncertain = self.uncertain.filter(|_| next < self.next_unposted);
        self.last_progress = Instant::now();
        self.is_stalled = false;
        self.counters.connections.add(1);
        let log = |after: &str, suppressed: Suppressed| {
            tracing::info!(
                "connected to {}{after}: {}, {}, starting with frame {next}{suppressed}",
                self.options.peer,
                counted(connection.rails.len(), self.memory.transport().rail()),
                counted(connection.rails[0].offer.slots, "slot")
            );
        };
        match self.interrupted.take() {
            // Each interruption in the log is followed by its end.
            Some(since) => log(&after(since), Suppressed(0)),
            None => self.limits.0.run(|suppressed| log("", suppressed)),
        }
        connection.set_window(self.window, self.memory.transport());
        self.connection = Some(connection);
        true
    }

    /// Posts the frames before `end` that may be posted now; frame `n` is at `place(n)` in `lease`. Returns true if any
    /// were posted.
    fn post(
        &mut self,
        lease: &Lease<'_>,
        end: u64,
        place: impl Fn(u64) -> usize,
    ) -> Result<bool, LinkError> {
        let Some(connection) = &mut self.connection else {
            return Ok(false);
        };
        let limit = connection.limit();
        let stop = end.min(limit).min(self.done + connection.window);
        if self.posted >= stop {
            if self.posted >= limit && self.posted == self.done && !self.is_stalled {
                self.is_stalled = true;
                self.counters.stalls.add(1);
            }
            return Ok(false);
        }
        while self.posted < stop {
            let (n, i) = (self.posted, place(self.posted));
            // Even if posting fails, parts of the frame may have been sent.
            self.next_unposted = self.next_unposted.max(n + 1);
            let index = usize::try_from(n % self.rails).unwrap_or(0);
            let rail = &mut connection.rails[index];
            let records = connection.records.as_mut().unwrap_or(&mut self.records);
            let frame = lease.frame(i);
            let is_message = self.options.mode == Mode::Send;
            let padded = is_message.then(|| rail.record_bytes());
            let inline = (self.options.inline as usize).saturating_sub(padded.unwrap_or(0));
            let payload = self.memory.source(lease, (i, n, index), inline)?;
            let meta = frame.meta();
            let words = frame.present().words();
            let record = Record {
                number: n,
                sequence: meta.sequence,
                epoch: meta.epoch.into(),
                timestamp: meta.timestamp,
                length: payload.bytes() as u64,
                flags: meta.flags.0,
                packets_per_frame: meta.packets_per_frame,
                arrived: meta.arrived,
                packet_sizes: meta.packet_sizes,
                kept_mask: meta.kept.mask() & rail.kept_mask(),
                checksums: self.options.has_checksums.then(|| Checksums {
                    // The transport `tcp` gets only frames that the CPU can read.
                    payload: checksum::of_bytes(frame.bytes().unwrap_or_default()),
                    record: 0,
                }),
            };
            let kept = &meta.kept.values()[..record.kept_words()];
            let words = &words[..words
                .len()
                .min((meta.packets_per_frame as usize).div_ceil(64))];
            let inline = match payload {
                Source::Inline(bytes) if is_message => Some(bytes),
                _ => None,
            };
            let (record, whole) =
                records.store_record(&record, (words, kept), padded, inline, index);
            let frame_post = FramePost {
                number: n,
                payload,
                record,
                chunk: self.options.chunk,
                // The last frames of this call are signaled, and some in between, so that queue entries become free in
                // time.
                signaled: n + self.rails >= stop
                    || (n / self.rails) % self.signal_every == self.signal_every - 1,
            };
            match self.options.mode {
                Mode::Write => rail.write(&frame_post)?,
                Mode::Send => rail.send(&frame_post, whole)?,
            }
            self.posted = n + 1;
        }
        self.is_stalled = false;
        Ok(true)
    }

    /// Collects completions. Returns true if at least one completion was collected.
    fn collect(&mut self) -> Result<bool, LinkError> {
        let Some(connection) = &mut self.connection else {
            return Ok(false);
        };
        let (mut any, mut done) = (false, self.posted);
        for rail in &mut connection.rails {
            any |= rail.poll()?;
            done = done.min(rail.done());
        }
        if done > self.done {
            self.set_done(done);
            self.last_progress = Instant::now();
            self.connector.reset_backoff();
        }
        Ok(any)
    }

    /// Waits for a short time. Fails if the connection has failed.
    fn idle(&mut self) -> Result<(), LinkError> {
        let stood = self.last_progress.elapsed();
        if self.checked.elapsed() >= CHECK_INTERVAL {
            self.check_peer()?;
        }
        let is_under_way = self.posted > self.done;
        let timeout = self.options.timeout;
        if is_under_way && stood >= timeout.max(MIN_ACK_TIMEOUT) {
            return Err(LinkError::Reason(format!(
                "the receiver has acknowledged nothing for {} s",
                stood.as_secs()
            )));
        }
        if self.is_stalled && self.options.service != Service::Rc && stood >= timeout {
            return Err(LinkError::Reason(
                "the receiver sends no more credits, because frames or credits were lost; reconnecting"
                    .to_owned(),
            ));
        }
        let rails = match &mut self.connection {
            Some(connection) => &mut connection.rails[..],
            None => &mut [],
        };
        let polls = match self.options.wait {
            Wait::Busy => true,
            Wait::Adaptive => stood < SPIN_TIME && !rails.iter().any(Rail::is_blocked),
            Wait::Event => false,
        };
        if polls {
            std::hint::spin_loop();
            return Ok(());
        }
        // Over TCP, waiting also ends when credits arrive.
        if !rail::wait(rails, is_under_way, COMPLETION_WAIT)? {
            std::thread::sleep(IDLE_SLEEP);
        }
        Ok(())
    }

    /// Returns true if the receiver has granted no credits for longer than the timeout.
    fn is_backpressured(&self) -> bool {
        self.is_stalled && self.last_progress.elapsed() >= self.options.timeout
    }

    /// Checks whether the receiver is still connected. Posts keep-alive requests if no frames are sent.
    fn check_peer(&mut self) -> Result<(), LinkError> {
        let now = Instant::now();
        self.checked = now;
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        if let Some(why) = connection.monitor.poll_disconnect() {
            return Err(LinkError::Reason(why.to_string()));
        }
        let (at, posted) = self.last_keep_alive;
        if posted != self.posted {
            self.last_keep_alive = (now, self.posted);
        } else if self.options.service != Service::Ud && now - at >= KEEP_ALIVE {
            if connection.rails.iter().any(Rail::is_keep_alive_pending) {
                if now - at >= KEEP_ALIVE + MIN_ACK_TIMEOUT {
                    return Err(LinkError::Reason(format!(
                        "the receiver has acknowledged nothing for {} s",
                        (now - at).as_secs()
                    )));
                }
                return Ok(());
            }
            for rail in &mut connection.rails {
                rail.keep_alive()?;
            }
            self.last_keep_alive.0 = now;
        }
        Ok(())
    }

    /// Ends the connection. The queue pairs are destroyed, so that no NIC reads or writes memory for this connection
    /// any more. `held` is the current lease and the index of its first frame that is neither sent nor lost; `None`
    /// without a lease.
    fn disconnect(&mut self, why: &LinkError, held: Option<(&Lease<'_>, usize)>) {
        if self.connection.take().is_none() {
            return;
        }
        self.why = why.to_string();
        self.limits.1.run(|suppressed| {
            tracing::warn!(
                "{}: the connection is lost: {why}; {} in flight{suppressed}",
                self.options.peer,
                counted(self.next_unposted - self.done, "frame")
            );
            self.interrupted = Some(Instant::now());
        });
        self.is_stalled = false;
        if self.next_unposted > self.done {
            match held {
                Some((lease, i)) => self.uncertain = Some(frame_id(lease.frame(i).meta())),
                None => self.set_done(self.next_unposted),
            }
        }
        self.connector.go();
    }

    /// Returns the result of [`send`](Self::send) for `sent` frames, and updates the identity of the next frame, which
    /// the receiver may have already.
    fn finish_send(&mut self, sent: u64, lease: &Lease<'_>, from: usize) -> usize {
        let sent = usize::try_from(sent)
            .unwrap_or(usize::MAX)
            .min(lease.len() - from);
        if self.uncertain.is_some() {
            let next = lease.len().min(from + sent);
            self.uncertain = (next < lease.len()).then(|| frame_id(lease.frame(next).meta()));
        }
        sent
    }

    fn unavailable(&self) -> Unavailable {
        Unavailable::Disconnected(self.why.clone())
    }
}

/// Returns the identity of a frame in its ring.
const fn frame_id(meta: &FrameMeta) -> FrameId {
    (meta.epoch, meta.sequence)
}
