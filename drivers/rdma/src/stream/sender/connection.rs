//! The connection to a receiver. A separate thread connects, so that sending never blocks on it.

use super::memory::Records;
use super::rail::Rail;
use super::{MAX_RAILS, Options};
use crate::connect::{ConnectError, Connector, PeerMonitor};
use crate::registration;
use crate::stream::sys::shared_words::SharedWords;
use crate::stream::wire::{Hello, MAX_PLACES, Mode, Offer, Record};
use crate::verbs::{Access, MemoryRegion, Nic, QueuePairOptions, Service};
use daq_core::notify::Wait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Bytes from one rail's word for credits to the next: none shares a line.
const CREDIT_STRIDE: usize = 64;
/// How long the first retry waits, about; each one waits twice as long as the one before.
const INITIAL_BACKOFF: Duration = Duration::from_millis(10);
/// How long no retry waits longer than.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Queues that lead to a receiver. The queues come first: they are destroyed before the keys of the memory that is
/// written through them are dropped, and the memory is let go last.
pub(super) struct Connection {
    pub(super) rails: Vec<Rail>,
    pub(super) monitor: Box<dyn PeerMonitor>,
    /// Room for records, where the receiver's are larger than this side has made room for.
    pub(super) records: Option<Records>,
    _keys: Vec<MemoryRegion>,
    credits: SharedWords,
    /// The frame that it wants next.
    pub(super) next: u64,
    /// Frames from `next` on that may have been sent in all, as far as was seen.
    granted: u64,
    /// Whether the receiver can say more than in its offer: datagrams write no words.
    receives_credits: bool,
}

impl Connection {
    /// Frames before this one may be sent.
    pub(super) fn limit(&mut self) -> u64 {
        if !self.receives_credits {
            return u64::MAX;
        }
        for rail in 0..self.rails.len() {
            // Credits only grow: a delayed word is smaller than the latest one.
            self.granted = self.granted.max(self.credits.word(rail * CREDIT_STRIDE));
        }
        self.next.saturating_add(self.granted)
    }
}

/// What the thread that dials needs.
pub(super) struct Terms {
    pub(super) connector: Box<dyn Connector>,
    /// One a rail.
    pub(super) nics: Vec<Arc<dyn Nic>>,
    pub(super) options: Options,
    /// Most frames under way.
    pub(super) window: usize,
    /// The first frame that can still be sent.
    pub(super) first: Arc<AtomicU64>,
    pub(super) stream: u64,
}

/// Connects to the receiver on request.
pub(super) struct Reconnector {
    /// How long to wait before.
    requests: mpsc::Sender<Duration>,
    answers: mpsc::Receiver<Result<Connection, String>>,
    /// Attempts since frames went last.
    attempts: u32,
    /// Whether an answer is to come.
    is_busy: bool,
    /// True once no connection is needed; shared with the connecting thread.
    is_cancelled: Arc<AtomicBool>,
    jitter: u64,
}

impl Drop for Reconnector {
    fn drop(&mut self) {
        self.end(0);
    }
}

impl Reconnector {
    pub(super) fn new(mut terms: Terms) -> std::io::Result<Self> {
        let (requests, to_do) = mpsc::channel();
        let (done, answers) = mpsc::channel();
        let jitter = terms.stream;
        let is_cancelled = Arc::new(AtomicBool::new(false));
        terms.connector.cancel_with(is_cancelled.clone());
        let seen = is_cancelled.clone();
        std::thread::Builder::new()
            .name("daq-rdma-dial".to_owned())
            .spawn(move || serve(terms, &to_do, &done, &seen))?;
        Ok(Self {
            requests,
            answers,
            attempts: 0,
            is_busy: false,
            is_cancelled,
            jitter,
        })
    }

    /// Stops connecting. A connection that was just created is closed, with the number of frames.
    pub(super) fn end(&mut self, frames: u64) {
        self.is_cancelled.store(true, Ordering::Release);
        while let Ok(answer) = self.answers.try_recv() {
            if let Ok(mut connection) = answer {
                connection.monitor.close(frames);
            }
        }
    }

    /// Has it go there, at once or after a pause that grows; nothing where it is on its way.
    pub(super) fn go(&mut self) {
        if self.is_busy {
            return;
        }
        let pause = self.pause();
        self.attempts += 1;
        // Without the thread there is no answer; `wait` reports that.
        self.is_busy = self.requests.send(pause).is_ok();
    }

    /// Frames go: the next attempt is the first one.
    pub(super) const fn reset_backoff(&mut self) {
        self.attempts = 0;
    }

    /// Waits for the receiver; `None` when `limit` has passed.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<Result<Connection, String>> {
        self.go();
        let answer = match self.answers.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Timeout) => return None,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err("the thread that connects has ended; this is a defect of daq".to_owned())
            }
        };
        self.is_busy = false;
        Some(answer)
    }

    /// The next pause: none, then 10 ms and twice as long each time up to 2 s, less up to a half by chance.
    fn pause(&mut self) -> Duration {
        let Some(doublings) = self.attempts.checked_sub(1) else {
            return Duration::ZERO;
        };
        let full = INITIAL_BACKOFF
            .saturating_mul(1 << doublings.min(16))
            .min(MAX_BACKOFF);
        // Marsaglia's xorshift: two senders that lost one receiver do not come back in step.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        full / 2 + full / 2 * u32::from(self.jitter.to_le_bytes()[3]) / 255
    }
}

/// Connects on each request, until the channel closes.
fn serve(
    mut terms: Terms,
    requests: &mpsc::Receiver<Duration>,
    answers: &mpsc::Sender<Result<Connection, String>>,
    is_cancelled: &AtomicBool,
) {
    while let Ok(pause) = requests.recv() {
        if !pause.is_zero()
            && requests.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Disconnected)
        {
            return;
        }
        let is_cancelled = || is_cancelled.load(Ordering::Acquire);
        let mut answer = if is_cancelled() {
            Err("this side has stopped".to_owned())
        } else {
            terms.dial()
        };
        // It may have ended in the last step of connecting.
        if is_cancelled()
            && let Ok(connection) = &mut answer
        {
            connection
                .monitor
                .close(terms.first.load(Ordering::Acquire));
        }
        if answers.send(answer).is_err() {
            return;
        }
    }
}

impl Terms {
    fn dial(&mut self) -> Result<Connection, String> {
        let first = self.first.load(Ordering::Acquire);
        let (hello, keys, credits) = self.hello(first)?;
        let greetings: Vec<_> = hello.iter().map(Hello::encode).collect();
        let queue = self.options.queue_pair_options(&self.nics);
        let link = self
            .connector
            .dial(
                &self.nics,
                &queue,
                &greetings,
                &mut |_, _| Ok(()),
                self.options.dial,
            )
            .map_err(|error: ConnectError| error.to_string())?;
        let rails = self.nics.len();
        let offers: Result<Vec<_>, _> = link.greetings.iter().map(|g| Offer::decode(g)).collect();
        let offers =
            offers.map_err(|error| format!("cannot decode the receiver's answer: {error}"))?;
        self.check(first, &offers)?;
        let next = offers[0].next;
        let granted = offers.iter().map(|offer| offer.credits).max().unwrap_or(0);
        let is_reliable = self.options.service == Service::Rc;
        let records = self.records(offers[0].places)?;
        let rails = link
            .rails
            .into_iter()
            .zip(offers)
            .enumerate()
            .map(|(i, (queue, offer))| Rail::new(queue, offer, (i, rails), is_reliable))
            .collect();
        Ok(Connection {
            rails,
            monitor: link.monitor,
            records,
            _keys: keys,
            credits,
            next,
            granted,
            receives_credits: self.options.service != Service::Ud,
        })
    }

    /// Room for records of a receiver with so many places, where the sender's own are too small: a message's record has the
    /// receiver's size, a written one that of the frame.
    fn records(&self, places: u32) -> Result<Option<Records>, String> {
        if self.options.mode == Mode::Write || places <= self.options.places {
            return Ok(None);
        }
        Records::new(&self.nics, &self.options, self.window, places).map(Some)
    }

    /// What is said on each rail, with new memory for credits under new keys.
    fn hello(&self, first: u64) -> Result<(Vec<Hello>, Vec<MemoryRegion>, SharedWords), String> {
        let rails = self.nics.len();
        let credits = SharedWords::new(rails * CREDIT_STRIDE).map_err(|error| error.to_string())?;
        let access = Access {
            local_write: true,
            remote_write: true,
            relaxed: false,
        };
        let mut keys = Vec::with_capacity(rails);
        let mut hello = Vec::with_capacity(rails);
        for (i, nic) in self.nics.iter().enumerate() {
            let key = registration::register_words(&**nic, credits.region(), access)
                .map_err(|error| error.to_string())?;
            hello.push(Hello {
                mode: self.options.mode,
                rail: u8::try_from(i).unwrap_or(MAX_RAILS),
                rails: u8::try_from(rails).unwrap_or(MAX_RAILS),
                places: self.options.places,
                stream: self.stream,
                first,
                slot: self.options.slot as u64,
                credit_address: key.address() + (i * CREDIT_STRIDE) as u64,
                credit_rkey: key.rkey(),
            });
            keys.push(key);
        }
        Ok((hello, keys, credits))
    }

    /// Whether frames can go as the receiver has offered.
    fn check(&self, first: u64, offers: &[Offer]) -> Result<(), String> {
        let Some(offer) = offers.first().filter(|_| offers.len() == self.nics.len()) else {
            return Err(format!(
                "the receiver answered for {} queue pairs instead of {}: run the same version of daq on both hosts",
                offers.len(),
                self.nics.len()
            ));
        };
        let is_one = |other: &Offer| {
            (
                other.next,
                other.slots,
                other.first_slot,
                other.slot,
                other.places,
            ) == (
                offer.next,
                offer.slots,
                offer.first_slot,
                offer.slot,
                offer.places,
            )
        };
        if !offers.iter().all(is_one) {
            return Err(
                "the receiver sent different stream parameters on different queue pairs: run the same version of daq on both hosts"
                    .to_owned(),
            );
        }
        if offer.next < first {
            return Err(format!(
                "the receiver asks for frame {}, which this sender no longer has: restart the receiver",
                offer.next
            ));
        }
        let Options { slot, places, .. } = self.options;
        if offer.places > MAX_PLACES {
            return Err(format!(
                "the receiver's frames have up to {} places, a stream's {MAX_PLACES} at most: lower `places` of its source",
                offer.places
            ));
        }
        if offer.slot < slot as u64 {
            return Err(format!(
                "the receiver's slots have {} bytes, frames here up to {slot}: set `slot = \"{slot} B\"` in the ring of its source",
                offer.slot
            ));
        }
        if offer.places < places {
            return Err(format!(
                "the receiver's frames have up to {} places, frames here up to {places}: set `places = {places}` in its source",
                offer.places
            ));
        }
        let record = Record::bytes(offer.places) as u64;
        if self.options.mode == Mode::Send && record + slot as u64 > self.options.message {
            return Err(format!(
                "a message has at most {} bytes, a frame with its record {}: make `slot` smaller, or use `mode = \"write\"`",
                self.options.message,
                record + slot as u64
            ));
        }
        Ok(())
    }
}

impl Options {
    /// What a queue must hold.
    pub(super) fn queue_pair_options(&self, nics: &[Arc<dyn Nic>]) -> QueuePairOptions {
        let least = |of: fn(&crate::verbs::Limits) -> u32| {
            nics.iter().map(|nic| of(&nic.limits())).min().unwrap_or(0)
        };
        QueuePairOptions {
            service: self.service,
            // One more for what carries no frame.
            sends: self.depth * self.requests_per_frame() + 1,
            receives: 1,
            sges: 1,
            inline: self.inline.min(least(|limits| limits.max_inline)),
            events: self.wait != Wait::Busy,
        }
    }
}
