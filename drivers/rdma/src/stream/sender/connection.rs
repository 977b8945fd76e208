//! The connection to a receiver. A separate thread connects, so that sending never blocks on connecting.

use super::memory::Records;
use super::rail::Rail;
use super::{MAX_RAILS, Options};
use crate::connect::{ConnectError, Connector, Handshake, PeerMonitor};
use crate::registration::set::RailRegions;
use crate::verbs::{Access, Nic, QueuePairOptions, Service, Transport};
use crate::wire::{Hello, MAX_PACKETS_PER_FRAME, Mode, Offer, Record};
use daq_core::notify::Wait;
use daq_core::region::SharedWords;
use daq_core::units::counted;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Distance in bytes between the credit words of consecutive rails; each word has its own cache line.
const CREDIT_STRIDE: usize = 64;
/// Maximum time of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Approximate delay of the first retry. Each retry doubles the delay.
const INITIAL_BACKOFF: Duration = Duration::from_millis(10);
/// Maximum delay of a retry.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// The connected queue pairs to a receiver. The fields are dropped in order: the queue pairs first, then the memory
/// regions that the peer writes through these queue pairs, then the memory.
pub(super) struct Connection {
    pub(super) rails: Vec<Rail>,
    pub(super) monitor: Box<dyn PeerMonitor>,
    /// Buffer for records, if the receiver's records are larger than those of the sender's own buffer.
    pub(super) records: Option<Records>,
    _keys: RailRegions,
    credits: SharedWords,
    /// Number of the next frame that the receiver requests.
    pub(super) next: u64,
    /// Maximum number of frames in flight.
    pub(super) window: u64,
    /// Total number of frames, counted from `next`, that may be sent according to the last read of the credit words.
    granted: u64,
    /// True if the receiver can grant more credits than its offer contains. Such a grant is a write of the credit word,
    /// which datagram queue pairs do not support.
    receives_credits: bool,
}

impl Connection {
    /// Sets the maximum number of frames in flight to `window`, or less if several TCP connections share the receiver's
    /// slots. Also sets after how many frames the receiver acknowledges at once.
    pub(super) fn set_window(&mut self, window: u64, transport: Transport) {
        self.window = window;
        if transport != Transport::Tcp {
            return;
        }
        let (rails, slots) = (self.rails.len() as u64, self.rails[0].offer.slots.into());
        self.window = tcp_window(window, rails, slots);
        // Each acknowledgement costs both ends a system call, and each connection needs its own.
        let acknowledgements = if rails > 1 { 2 } else { 4 };
        for rail in &mut self.rails {
            rail.set_acknowledgement_interval((self.window / rails / acknowledgements).max(1));
        }
    }

    /// Returns the frame number below which frames may be sent.
    pub(super) fn limit(&mut self) -> u64 {
        if !self.receives_credits {
            return u64::MAX;
        }
        for rail in 0..self.rails.len() {
            // Credits only increase, so a smaller value is outdated.
            self.granted = self.granted.max(self.credits.load64(rail * CREDIT_STRIDE));
        }
        self.next.saturating_add(self.granted)
    }
}

/// Returns the maximum number of frames in flight over this number of TCP connections to a receiver with `slots` slots, at
/// most `window`.
///
/// The receiver delivers in order, so frames that arrive early occupy slots. If frames in flight could occupy all slots,
/// both ends would take turns: the sender waits for slots until the slowest connection has caught up. So several
/// connections share half of the slots, but each has a second frame to send while the first one is acknowledged.
fn tcp_window(window: u64, connections: u64, slots: u64) -> u64 {
    let max = match connections {
        0 | 1 => slots,
        _ => (slots / 2).max(2 * connections).min(slots),
    };
    window.min(max.max(1))
}

/// The parameters with which the connecting thread connects.
pub(super) struct Terms {
    pub(super) connector: Connector,
    /// The NICs, one per rail.
    pub(super) nics: Vec<Arc<dyn Nic>>,
    pub(super) options: Options,
    /// Maximum number of frames in flight.
    pub(super) window: usize,
    /// Number of the first frame that can still be sent.
    pub(super) first: Arc<AtomicU64>,
    pub(super) stream: u64,
}

/// Connects to the receiver on request.
pub(super) struct Reconnector {
    /// Requests to connect, with the delay before the attempt.
    requests: mpsc::Sender<Duration>,
    answers: mpsc::Receiver<Result<Connection, String>>,
    /// Number of attempts since frames were last sent.
    attempts: u32,
    /// True if an attempt is in progress.
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
    pub(super) fn new(terms: Terms) -> std::io::Result<Self> {
        let (requests, to_do) = mpsc::channel();
        let (done, answers) = mpsc::channel();
        let jitter = terms.stream;
        let is_cancelled = terms.connector.cancellation();
        let seen = is_cancelled.clone();
        std::thread::Builder::new()
            .name("daq-stream-conn".to_owned())
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

    /// Stops connecting. If a connection was just established, closes it with a message that contains the number of
    /// frames.
    pub(super) fn end(&mut self, frames: u64) {
        self.is_cancelled.store(true, Ordering::Release);
        while let Ok(answer) = self.answers.try_recv() {
            if let Ok(mut connection) = answer {
                connection.monitor.close(frames);
            }
        }
    }

    /// Starts an attempt to connect. The first attempt starts immediately, later attempts after an increasing delay.
    /// Has no effect while an attempt is in progress.
    pub(super) fn go(&mut self) {
        if self.is_busy {
            return;
        }
        let pause = self.pause();
        self.attempts += 1;
        // If the thread has ended, no answer arrives; `wait` reports this.
        self.is_busy = self.requests.send(pause).is_ok();
    }

    /// Resets the delay after frames were sent successfully.
    pub(super) const fn reset_backoff(&mut self) {
        self.attempts = 0;
    }

    /// Waits for the result of an attempt to connect; `None` if `limit` has passed.
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

    /// Returns the delay before the next attempt: first zero, then 10 ms, then doubled for each attempt up to 2 s. Each
    /// delay is reduced by up to half at random.
    fn pause(&mut self) -> Duration {
        let Some(doublings) = self.attempts.checked_sub(1) else {
            return Duration::ZERO;
        };
        let full = INITIAL_BACKOFF
            .saturating_mul(1 << doublings.min(16))
            .min(MAX_BACKOFF);
        // Marsaglia's xorshift. The random delay keeps two senders from retrying at the same time.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        full / 2 + full / 2 * u32::from(self.jitter.to_le_bytes()[3]) / 255
    }
}

/// Connects on each request until the channel is closed.
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
            terms.connect()
        };
        // The sender may have ended during the last step of the attempt.
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
    fn connect(&mut self) -> Result<Connection, String> {
        let first = self.first.load(Ordering::Acquire);
        let (hello, keys, credits) = self.hello(first)?;
        let greetings: Vec<_> = hello.iter().map(Hello::encode).collect();
        let queue = self.options.queue_pair_options(&self.nics);
        let link = self
            .connector
            .connect(
                Handshake {
                    nics: &self.nics,
                    options: &queue,
                    greetings: &greetings,
                    prepare: &mut |_, _| Ok(()),
                },
                CONNECT_TIMEOUT,
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
        let records = self.records(&offers[0])?;
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
            window: self.window as u64,
            granted,
            receives_credits: self.options.service != Service::Ud,
        })
    }

    /// Allocates a buffer for records if the receiver's frames have more packet slots than the sender's own buffer
    /// supports. In a message the record has the receiver's size; a written record has the size of the frame's own
    /// record.
    fn records(&self, offer: &Offer) -> Result<Option<Records>, String> {
        let (packets_per_frame, kept) = self.options.record_shape();
        let theirs = Record::bytes(offer.packets_per_frame, offer.kept);
        if self.options.mode == Mode::Write || theirs <= Record::bytes(packets_per_frame, kept) {
            return Ok(None);
        }
        let shape = (offer.packets_per_frame, offer.kept);
        Records::new(&self.nics, &self.options, self.window, shape).map(Some)
    }

    /// Returns the greetings of all rails, and new memory for the credit words with its memory regions.
    fn hello(&self, first: u64) -> Result<(Vec<Hello>, RailRegions, SharedWords), String> {
        let rails = self.nics.len();
        let credits = SharedWords::new(rails * CREDIT_STRIDE).map_err(|error| error.to_string())?;
        let keys = RailRegions::register(&self.nics, credits.region(), Access::WRITE)
            .map_err(|error| error.to_string())?;
        let hello = (0..rails).map(|i| Hello {
            mode: self.options.mode,
            rail: u8::try_from(i).unwrap_or(MAX_RAILS),
            rails: u8::try_from(rails).unwrap_or(MAX_RAILS),
            packets_per_frame: self.options.packets_per_frame,
            kept: self.options.kept,
            places: self.options.places,
            stream: self.stream,
            first,
            slot: self.options.slot as u64,
            credit_address: keys.of(i).address() + (i * CREDIT_STRIDE) as u64,
            credit_rkey: keys.of(i).rkey(),
            has_checksums: self.options.has_checksums,
        });
        Ok((hello.collect(), keys, credits))
    }

    /// Checks whether frames can be sent with the receiver's offers.
    fn check(&self, first: u64, offers: &[Offer]) -> Result<(), String> {
        let Some(offer) = offers.first().filter(|_| offers.len() == self.nics.len()) else {
            return Err(format!(
                "the receiver answered for {} instead of {}: run the same version of daq on both hosts",
                counted(offers.len(), "queue pair"),
                self.nics.len()
            ));
        };
        let is_one = |other: &Offer| {
            (
                other.next,
                other.slots,
                other.first_slot,
                other.slot,
                other.packets_per_frame,
            ) == (
                offer.next,
                offer.slots,
                offer.first_slot,
                offer.slot,
                offer.packets_per_frame,
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
                "the receiver requests frame {}, which this sender no longer has: restart the receiver",
                offer.next
            ));
        }
        let Options {
            slot,
            packets_per_frame,
            ..
        } = self.options;
        if offer.packets_per_frame > MAX_PACKETS_PER_FRAME {
            return Err(format!(
                "the receiver's frames have up to {} packets, but a stream supports at most {MAX_PACKETS_PER_FRAME} per frame: lower `packets_per_frame` in the receiver's source",
                offer.packets_per_frame
            ));
        }
        if offer.slot < slot as u64 {
            return Err(format!(
                "the receiver's slots have {} bytes, but frames of this sink have up to {slot} bytes: set `slot = \"{slot} B\"` in the ring of the receiver's source",
                offer.slot
            ));
        }
        if offer.packets_per_frame < packets_per_frame {
            return Err(format!(
                "the receiver supports {} per frame, but frames of this sink have up to {packets_per_frame}: set `packets_per_frame = {packets_per_frame}` in the receiver's source",
                counted(offer.packets_per_frame, "packet")
            ));
        }
        let record = Record::bytes(offer.packets_per_frame, offer.kept) as u64;
        if self.options.mode == Mode::Send && record + slot as u64 > self.options.message {
            return Err(format!(
                "a frame and its record need {} bytes, but a message can have at most {}: lower `slot`, or set `mode = \"write\"` on both hosts",
                record + slot as u64,
                self.options.message
            ));
        }
        Ok(())
    }
}

impl Options {
    /// Returns the maximum number of packets and of kept fields per frame.
    pub(super) const fn record_shape(&self) -> (u32, u8) {
        (self.packets_per_frame, self.kept.count)
    }

    /// Returns the options of a queue pair for this stream.
    pub(super) fn queue_pair_options(&self, nics: &[Arc<dyn Nic>]) -> QueuePairOptions {
        let min = |of: fn(&crate::verbs::Limits) -> u32| {
            nics.iter().map(|nic| of(&nic.limits())).min().unwrap_or(0)
        };
        QueuePairOptions {
            service: self.service,
            // One additional request for keep-alive messages, which carry no frame.
            sends: self.depth * self.requests_per_frame() + 1,
            receives: 1,
            sges: 1,
            inline: self.inline.min(min(|limits| limits.max_inline)),
            events: self.wait != Wait::Busy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::tcp_window;

    #[test]
    fn several_connections_share_half_of_the_slots() {
        let cases = [
            // A single connection may fill all slots.
            ((128, 1, 256), 128),
            ((128, 1, 16), 16),
            ((256, 2, 256), 128),
            ((512, 4, 256), 128),
            ((64, 4, 256), 64),
            // At least two frames per connection, within the slots.
            ((8, 4, 8), 8),
            ((128, 4, 12), 8),
            ((512, 4, 5), 5),
        ];
        for ((window, connections, slots), max) in cases {
            assert_eq!(tcp_window(window, connections, slots), max);
        }
    }
}
