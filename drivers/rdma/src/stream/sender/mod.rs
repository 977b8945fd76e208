//! The sending end of a stream: frames of a ring go to a receiver on another host.
//!
//! ```text
//!   lease ──post──▶ rail n % rails ──▶ receiver      within the receiver's credits
//!     ▲               │ completions
//!     └── so many ◀───┘                               a frame counts once its card is done with it
//! ```
//! # Guarantees
//! - No frame is sent beyond the receiver's credits.
//! - On a reliable connection a frame counts as sent once the receiver's NIC has acknowledged it, or the receiver has
//!   confirmed it after an interruption. Missing frames that are still leased are sent again; none is delivered twice.
//! - When [`Sender::send`] fails, no card reads the lease's slots any more: either nothing was under way, or the queues
//!   are destroyed.
//! - A receiver that is gone is an error with a sentence, within the time that was asked for; never a hang.
//! - While it is connected nothing here allocates, locks or makes a system call for a frame.
//!
//! # Not guaranteed
//! - On unreliable services that a frame came: it has left. What is missing is counted by the receiver, by number.

mod connection;
mod memory;
mod rail;
#[cfg(test)]
mod tests;

use crate::connect::Connector;
pub use crate::stream::wire::MAX_RAILS;
use crate::stream::wire::{MAX_PLACES, Mode, Record};
use crate::verbs::{Nic, Service, Status, VerbsError};
use connection::{Connection, Reconnector, Terms};
use daq_core::frame::FrameMeta;
use daq_core::ledger::Counter;
use daq_core::log_limit::LogLimit;
use daq_core::notify::Wait;
use daq_core::region::{Region, RegionError};
use daq_core::ring::Lease;
use daq_core::units::counted;
use memory::{Memory, Records};
use rail::{FramePost, PayloadSource, Rail};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long [`Sender::send`] stays away at most while it waits.
const SEND_TIME_LIMIT: Duration = Duration::from_millis(100);
/// How often a receiver is seen to be there while nothing else goes to it.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How often the connection is looked at while nothing moves.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// How long a waiting thread polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// Sleep time while it waits for credits, which raise no event.
const IDLE_SLEEP: Duration = Duration::from_micros(50);
/// How long it sleeps at a time for a completion.
const COMPLETION_WAIT: Duration = Duration::from_millis(1);
/// Minimum time after which unacknowledged requests count as lost.
const MIN_ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Most frames of a rail between two completions.
const SIGNAL_EVERY: u32 = 16;

/// How frames are sent.
#[derive(Clone, Debug)]
pub struct Options {
    /// The receiver, for messages.
    pub peer: String,
    /// By writes into its slots, or by messages.
    pub mode: Mode,
    /// Of the queues.
    pub service: Service,
    /// Most payload bytes of a frame.
    pub slot: usize,
    /// Most places of a frame; 0 where frames have none.
    pub places: u32,
    /// Payloads and records of at most so many bytes go inline, if the cards take as many.
    pub inline: u32,
    /// Most bytes of one write, so that large frames share a link.
    pub chunk: usize,
    /// Most frames under way on a rail, at least 1; less where a card holds less.
    pub depth: u32,
    /// How it waits.
    pub wait: Wait,
    /// Time without progress after which a receiver is reported as unavailable.
    pub timeout: Duration,
    /// How long one attempt to connect may take.
    pub dial: Duration,
    /// Whether the ring's reader is given copies of frames, not the ring's memory.
    pub copied: bool,
    /// Most bytes of one message, set by [`Sender::new`].
    pub message: u64,
}

impl Options {
    /// Reliable writes of frames of up to `slot` bytes with up to `places` places, with the commonest choices.
    pub fn new(peer: impl Into<String>, slot: usize, places: u32) -> Self {
        Self {
            peer: peer.into(),
            mode: Mode::Write,
            service: Service::Rc,
            slot,
            places,
            inline: 256,
            chunk: 1 << 20,
            depth: 128,
            wait: Wait::default(),
            timeout: Duration::from_secs(1),
            dial: Duration::from_secs(5),
            copied: false,
            message: u64::MAX,
        }
    }

    /// Most work of one frame.
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

/// Why there is no sender.
#[derive(Debug, thiserror::Error)]
pub enum SenderError {
    /// A card refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A card cannot read a GPU's memory.
    #[error("{0}; set `path = \"staged\"` to send through host memory")]
    Registering(#[from] crate::registration::UnregistrableError),
    /// There is no memory for records.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// There is no thread to connect.
    #[error("cannot start the thread that connects: {0}")]
    Thread(#[from] std::io::Error),
    /// The options cannot be met.
    #[error("{0}")]
    Options(String),
}

/// The receiver is away for now, with what is known of it.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Unavailable {
    /// What happened and what helps.
    pub why: String,
}

/// What a sender counts.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Times that it was connected.
    pub connections: Counter,
    /// Times that it began to wait for credits.
    pub stalls: Counter,
}

/// What has broken a connection.
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
                        "it does not answer: its process ended or the link is down"
                    }
                    Status::NotReady => "it had no receive posted in any retry",
                    Status::RemoteAccess => {
                        "its NIC rejected the remote key or address, because its memory was registered again"
                    }
                    Status::RemoteOperation => "its NIC failed during the operation",
                    Status::Local => {
                        "the local NIC rejected its own memory; this is a defect of daq"
                    }
                    Status::Flushed => "the queue pair had failed before",
                    Status::Success | Status::Other(_) => "the NIC failed",
                };
                write!(f, "{why} ({})", status.name())
            }
        }
    }
}

/// A frame as its ring calls it.
type FrameId = (u32, u64);

/// The sending end. Fields are dropped in their order: queues, then keys, then memory.
pub struct Sender {
    connection: Option<Connection>,
    connector: Reconnector,
    memory: Memory,
    records: Records,
    options: Options,
    rails: u64,
    /// Most frames under way.
    window: u64,
    signal_every: u64,
    /// Frames before this one were sent or lost.
    done: u64,
    /// The next frame to be posted on this connection.
    posted: u64,
    /// The first frame that was never posted.
    next_unposted: u64,
    /// Frame `done` while it may have been posted, after a break.
    uncertain: Option<FrameId>,
    /// The first frame that can still be sent, for the thread that connects.
    first: Arc<AtomicU64>,
    /// Since when nothing has moved.
    last_progress: Instant,
    /// When the connection was looked at.
    checked: Instant,
    /// When something was posted, as far as `check_peer` saw, and what had been.
    last_keep_alive: (Instant, u64),
    /// Whether it waits for credits.
    is_stalled: bool,
    /// Why there is no connection.
    why: String,
    counters: Counters,
    /// Limits on log messages: connected, disconnected.
    limits: (LogLimit, LogLimit),
}

impl Sender {
    /// A sender of frames whose payload lies in `ring`, through one queue for each of `nics`; the same card may stand
    /// there several times. It begins to connect at once.
    pub fn new(
        nics: Vec<Arc<dyn Nic>>,
        connector: Box<dyn Connector>,
        ring: &Arc<Region>,
        mut options: Options,
        counters: Counters,
    ) -> Result<Self, SenderError> {
        let rails = nics.len();
        if rails == 0 || rails > usize::from(MAX_RAILS) {
            return Err(SenderError::Options(format!(
                "{rails} queue pairs: a stream must have 1 to {MAX_RAILS}"
            )));
        }
        if options.places > MAX_PLACES {
            return Err(SenderError::Options(format!(
                "frames of {} places: the maximum is {MAX_PLACES}",
                options.places
            )));
        }
        apply_limits(&nics, &mut options)?;
        probe_queue_pairs(&nics, &mut options)?;
        let window = rails * options.depth as usize;
        let memory = Memory::new(&nics, ring, &options, window)?;
        let records =
            Records::new(&nics, &options, window, options.places).map_err(SenderError::Options)?;
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
        })
    }

    /// Which way the ring's memory is read, for the log.
    pub fn path(&self) -> String {
        self.memory.path()
    }

    /// Whether frames can go now.
    pub const fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Sends the frames of `lease` from `from` on and says how many of them the receiver surely has, on unreliable
    /// services: how many have left. It stays about 100 ms at most while nothing moves; then it has sent fewer, or none,
    /// and is to be called again with the same lease and what is left of it.
    ///
    /// After an error the frames may be offered again, or not: frames count as the same if their epoch and sequence are.
    pub fn send(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, Unavailable> {
        let until = Instant::now() + SEND_TIME_LIMIT;
        let end = (lease.len() - from) as u64;
        self.match_uncertain(lease, from);
        let start = self.done;
        // What frame `n` is in the lease does not change while this one is sent.
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
            match moved {
                Ok(true) => self.last_progress = Instant::now(),
                Ok(false) => match self.idle() {
                    Ok(()) if Instant::now() < until => {}
                    Ok(()) => {
                        let sent = self.done - start;
                        return if sent == 0 && self.is_backpressured() {
                            Err(Unavailable {
                                why: "it accepts no frames because its ring is full".to_owned(),
                            })
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

    /// To be called about once a second while no lease is held: sees whether the receiver is still there.
    pub fn tick(&mut self) {
        self.discard_uncertain();
        if self.connection.is_none() {
            // A receiver that came back is met before there are frames for it.
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

    /// Sends the receiver a close message with the number of frames, so that it counts frames that were lost at the
    /// end. On a reliable connection all sent frames have been acknowledged before.
    pub fn finish(&mut self) {
        let frames = self.next_unposted.max(self.done);
        self.set_done(frames);
        self.connector.end(frames);
        if let Some(mut connection) = self.connection.take() {
            connection.monitor.close(frames);
        }
    }

    /// Sees whether the frames of before are offered again; else they are lost, and so are their numbers.
    fn match_uncertain(&mut self, lease: &Lease<'_>, from: usize) {
        if self
            .uncertain
            .is_some_and(|name| name != frame_id(lease.frame(from).meta()))
        {
            self.discard_uncertain();
        }
        // What is under way goes on from call to call, and so does the time in which nothing of it was acknowledged.
        if !self.is_stalled && self.posted <= self.done {
            self.last_progress = Instant::now();
        }
    }

    /// The frames that may have been posted will not be offered again: their numbers are used up.
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

    /// Has a connection; else says why there is none by `until`.
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

    /// Takes what the thread that connects has brought; whether it is a connection that frames can go by.
    fn take(&mut self, answer: Result<Connection, String>) -> bool {
        let connection = match answer {
            Ok(connection) => connection,
            Err(why) => {
                self.why = why;
                return false;
            }
        };
        let next = connection.next;
        if next > self.next_unposted {
            self.why = format!(
                "it requested frame {next}, but only {} were sent",
                self.next_unposted
            );
            return false;
        }
        if next < self.done {
            // Meanwhile frames were given up that it was promised.
            "frames were dropped during the connection attempt; reconnecting"
                .clone_into(&mut self.why);
            return false;
        }
        if next > self.done {
            tracing::debug!(
                "{}: it already has {} frames from before the interruption",
                self.options.peer,
                next - self.done
            );
        }
        self.set_done(next);
        self.posted = next;
        self.uncertain = self.uncertain.filter(|_| next < self.next_unposted);
        self.last_progress = Instant::now();
        self.is_stalled = false;
        self.counters.connections.add(1);
        self.limits.0.run(|suppressed| {
            tracing::info!(
                "connected with {}: {}, {}, from frame {next} on{suppressed}",
                self.options.peer,
                counted(connection.rails.len(), "queue pair"),
                counted(connection.rails[0].offer.slots, "slot")
            );
        });
        self.connection = Some(connection);
        true
    }

    /// Posts what may be posted of the frames before `end`, of which frame `n` is at `place(n)` of `lease`; whether any
    /// was.
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
        let window = self.window.min(self.memory.window());
        let stop = end.min(limit).min(self.done + window);
        if self.posted >= stop {
            if self.posted >= limit && self.posted == self.done && !self.is_stalled {
                self.is_stalled = true;
                self.counters.stalls.add(1);
            }
            return Ok(false);
        }
        while self.posted < stop {
            let (n, i) = (self.posted, place(self.posted));
            // Even if its posting fails, a part of it may have gone.
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
                places: meta.places,
                arrived: meta.arrived,
            };
            let words = &words[..words.len().min((meta.places as usize).div_ceil(64))];
            let inline = match payload {
                PayloadSource::Inline(bytes) if is_message => Some(bytes),
                _ => None,
            };
            let (record, whole) = records.store_record(&record, words, padded, inline, index);
            let frame_post = FramePost {
                number: n,
                payload,
                record,
                chunk: self.options.chunk,
                // The last ones of now, and some between, so that there is always room.
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

    /// Collects what is done; whether there was any.
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
            self.connector.reset_backoff();
        }
        Ok(any)
    }

    /// Passes a little time, or finds that the connection is no good.
    fn idle(&mut self) -> Result<(), LinkError> {
        let stood = self.last_progress.elapsed();
        if self.checked.elapsed() >= CHECK_INTERVAL {
            self.check_peer()?;
        }
        let is_under_way = self.posted > self.done;
        let timeout = self.options.timeout;
        if is_under_way && stood >= timeout.max(MIN_ACK_TIMEOUT) {
            return Err(LinkError::Reason(format!(
                "it has acknowledged nothing for {} s",
                stood.as_secs()
            )));
        }
        if self.is_stalled && self.options.service != Service::Rc && stood >= timeout {
            return Err(LinkError::Reason(
                "it sends no more credits, because frames or credits were lost; reconnecting"
                    .to_owned(),
            ));
        }
        let waits = self.options.wait;
        if waits == Wait::Busy || waits == Wait::Adaptive && stood < SPIN_TIME {
            std::hint::spin_loop();
            return Ok(());
        }
        let slowest = self
            .connection
            .as_mut()
            .and_then(|connection| connection.rails.iter_mut().min_by_key(|rail| rail.done()));
        let slept = match slowest {
            Some(rail) if is_under_way => rail.wait(COMPLETION_WAIT)?,
            _ => false,
        };
        if !slept {
            std::thread::sleep(IDLE_SLEEP);
        }
        Ok(())
    }

    /// Whether the receiver takes nothing for longer than it is waited for.
    fn is_backpressured(&self) -> bool {
        self.is_stalled && self.last_progress.elapsed() >= self.options.timeout
    }

    /// Looks whether the receiver is still there, and writes nothing to it where nothing else goes.
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
                        "it has acknowledged nothing for {} s",
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

    /// Ends the connection: its queues are destroyed here, so that no card reads or writes anything for it any more.
    /// `held` is the first frame that is not done, where a lease is held.
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

    /// What is returned for `sent` frames of a lease; what comes behind them may be known to the receiver already.
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
        Unavailable {
            why: self.why.clone(),
        }
    }
}

/// What a frame is called by its ring.
const fn frame_id(meta: &FrameMeta) -> FrameId {
    (meta.epoch, meta.sequence)
}

/// Brings the options down to what every card can do.
fn apply_limits(nics: &[Arc<dyn Nic>], options: &mut Options) -> Result<(), SenderError> {
    if matches!(
        (options.mode, options.service),
        (Mode::Write, Service::Ud) | (Mode::Send, Service::Uc)
    ) {
        return Err(SenderError::Options(format!(
            "{} are not supported on {}: use mode = \"write\" with rc or uc, and mode = \"send\" with rc or ud",
            match options.mode {
                Mode::Write => "writes",
                Mode::Send => "messages",
            },
            options.service.name()
        )));
    }
    if options.service == Service::Ud && nics.len() > 1 {
        return Err(SenderError::Options(format!(
            "{} queue pairs: ud supports only one",
            nics.len()
        )));
    }
    for nic in nics {
        let limits = nic.limits();
        options.inline = options.inline.min(limits.max_inline);
        options.message = options.message.min(limits.max_message);
        if options.service == Service::Ud {
            options.message = options.message.min(nic.port()?.mtu.into());
        }
        if options.service == Service::Uc && options.slot as u64 > options.message {
            return Err(SenderError::Options(format!(
                "{}: a message has at most {} bytes, a frame {}: make `slot` smaller",
                nic.name(),
                options.message,
                options.slot
            )));
        }
        let most = usize::try_from(limits.max_message).unwrap_or(usize::MAX);
        options.chunk = options.chunk.clamp(1, most.max(1));
    }
    let requests_per_frame = options.requests_per_frame();
    for nic in nics {
        let room = nic.limits().max_work.saturating_sub(1) / requests_per_frame;
        if room == 0 {
            return Err(SenderError::Options(format!(
                "{}: a frame of {} B takes {requests_per_frame} writes, more than its queue pairs support: make `slot` smaller",
                nic.name(),
                options.slot
            )));
        }
        options.depth = options.depth.clamp(1, room);
    }
    Ok(())
}

/// Makes a queue of each card as the stream's will be, and asks for less until it is made: what a card says of its limits
/// holds for the smallest work alone.
fn probe_queue_pairs(nics: &[Arc<dyn Nic>], options: &mut Options) -> Result<(), SenderError> {
    let wanted = (options.depth, options.inline);
    for (i, nic) in nics.iter().enumerate() {
        if nics[..i].iter().any(|other| Arc::ptr_eq(other, nic)) {
            continue;
        }
        let before = (options.depth, options.inline);
        while let Err(error) = nic.create_queue_pair(&options.queue_pair_options(nics)) {
            // No other answer is about the size of what was asked for.
            let is_too_much = matches!(error.errno, libc::EINVAL | libc::ENOMEM | libc::ENOSPC);
            if is_too_much && options.depth > 1 {
                options.depth /= 2;
            } else if is_too_much && options.inline > 0 {
                options.inline /= 2;
            } else {
                return Err(error.into());
            }
        }
        // Where less inline was the remedy, fewer frames were none.
        while options.inline < before.1 && options.depth < before.0 {
            let depth = options.depth;
            options.depth = (depth * 2).min(before.0);
            if nic
                .create_queue_pair(&options.queue_pair_options(nics))
                .is_err()
            {
                options.depth = depth;
                break;
            }
        }
    }
    if wanted != (options.depth, options.inline) {
        tracing::warn!(
            "{}: the NICs cannot create queue pairs for {} frames with {} B inline; using {} frames with {} B",
            options.peer,
            wanted.0,
            wanted.1,
            options.depth,
            options.inline
        );
    }
    Ok(())
}
