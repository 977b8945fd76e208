//! One socket's thread: from the kernel into the window.
//!
//! Where this thread fills the window alone and packets are large, the kernel is told to put each packet's payload where
//! it belongs if packets go on as they came, and only what does not is moved. Else, and while guesses fail, packets are
//! received into buffers that stay in the cache, and copied past the cache. (Measured: the kernel takes 70 ns longer for
//! each packet that it has to cut out of a coalesced message, about as long as a copy of 4 KiB.)

use super::tune::{MESSAGES, PLACES, Seen, Tune};
use crate::datagram::Placer;
use crate::format::{Format, Parsed, Split};
use crate::sys::recv::{MESSAGE_BYTES, RecvBatch};
use crate::sys::scatter::Scatter;
use crate::sys::socket::UdpSocket;
use daq_core::frame::{Clock, Timestamp};
use daq_core::source::{Filler, Polled, SourceError};
use daq_core::window::{PacketId, Window};
use std::io;
use std::time::{Duration, Instant};

/// The longest header that is guessed, where the format does not fix it.
const HEADER: usize = 256;
/// Bytes for guessed headers, at most.
const HEADERS: usize = 4 << 20;
/// Payload bytes from which the kernel cutting a message costs less than copying it once more.
const LEAST: usize = 4096;
/// The kernel's drops are read at most this often.
const DROPS: Duration = Duration::from_millis(1);

/// Receives from one socket.
pub(super) struct Receiver {
    socket: UdpSocket,
    placer: Placer,
    plain: RecvBatch,
    scatter: Option<Scatter>,
    tune: Tune,
    /// What lay elsewhere than guessed, [`MESSAGE_BYTES`] a message.
    bounce: Box<[u8]>,
    rest: Vec<Moved>,
    drops_read: Option<Instant>,
}

/// A message, or the end of one, in the bounce buffer.
#[derive(Clone, Copy, Debug)]
struct Moved {
    bytes: usize,
    segment: usize,
    time: Timestamp,
}

/// Bytes of one thread's receive buffers, for payloads of `payload` bytes and so many threads.
pub(super) fn memory(payload: usize, threads: usize) -> usize {
    let buffers = MESSAGES * MESSAGE_BYTES;
    if threads == 1 && payload >= LEAST {
        2 * buffers + HEADERS
    } else {
        buffers
    }
}

/// What one receiving call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    Nothing,
    /// All of it as guessed.
    AsGuessed,
    Something,
}

impl Receiver {
    /// A receiver for the source `name`; `exclusive` = it alone fills the window.
    pub(super) fn new(name: &str, socket: UdpSocket, format: Format, exclusive: bool) -> Self {
        let trailer = format.trailer_len();
        let header = match &format {
            Format::Raw(raw) => raw.header_len(),
            Format::Spead(_) => HEADER,
        };
        let places = PLACES.min(HEADERS / (header + trailer).max(1));
        let guesses = exclusive && format.places().rest >= LEAST;
        let scatter = guesses.then(|| Scatter::new(MESSAGES, places, header, trailer));
        let bounce = if guesses { MESSAGES * MESSAGE_BYTES } else { 0 };
        Self {
            socket,
            placer: Placer::new(name, format),
            plain: RecvBatch::plain(MESSAGES, MESSAGE_BYTES),
            scatter,
            tune: Tune::default(),
            bounce: vec![0; bounce].into_boxed_slice(),
            rest: Vec::with_capacity(MESSAGES),
            drops_read: None,
        }
    }

    fn receive(&mut self, window: &mut Window) -> io::Result<Got> {
        let guesses = self.scatter.is_some() && window.is_exclusive() && self.tune.guesses();
        if guesses && let Some(got) = self.receive_into_places(window)? {
            return Ok(got);
        }
        self.receive_and_copy(window, !guesses)
    }

    fn receive_and_copy(&mut self, window: &mut Window, is_rule: bool) -> io::Result<Got> {
        let count = self.plain.recv(&self.socket, self.tune.plain(is_rule))?;
        if count == 0 {
            return Ok(Got::Nothing);
        }
        let (plain, tune) = (&self.plain, &mut self.tune);
        let datagrams = (0..count).flat_map(|message| {
            let about = plain.message(message);
            tune.saw_plain(about.packets());
            packets(plain.bytes(message), about.segment)
                .map(move |bytes| (bytes, received_at(about.timestamp_ns)))
        });
        self.placer.place(window, datagrams);
        Ok(Got::Something)
    }

    /// Receives into guessed places; `None` where nothing can be guessed.
    fn receive_into_places(&mut self, window: &mut Window) -> io::Result<Option<Got>> {
        let Some(scatter) = &mut self.scatter else {
            return Ok(None);
        };
        let (messages, segments) = self.tune.guess();
        let placer = &mut self.placer;
        let mut batch = window.batch();
        let header = |id: PacketId| placer.format().header_len(id.sub);
        let Some(mut received) =
            scatter.receive(&mut batch, &self.socket, messages, segments, header)?
        else {
            return Ok(None);
        };
        self.rest.clear();
        let mut seen = Seen {
            messages: received.messages(),
            ..Seen::default()
        };
        for message in 0..received.messages() {
            let (about, row) = (received.message(message), received.row(message));
            let (count, time) = (about.packets(), received_at(about.timestamp_ns));
            seen.fullest = seen.fullest.max(count);
            seen.uneven |= count != row.count && message + 1 < received.messages();
            let mut matched = 0;
            // Once a packet is not where it was guessed, none after it is.
            if self.rest.is_empty() {
                let is_aligned = about.segment == row.packet || count == 1;
                let most = if is_aligned { count.min(row.count) } else { 0 };
                while matched < most {
                    let place = row.first + matched;
                    let length = about.segment.min(about.bytes - matched * about.segment);
                    let header = received.header(place);
                    if length != received.packet_bytes(place) {
                        break;
                    }
                    let Ok(Split::Whole(Parsed::Data(packet))) = placer
                        .format_mut()
                        .parse_split(header, length - header.len())
                    else {
                        break;
                    };
                    let id = PacketId {
                        unit: packet.unit,
                        sub: packet.sub,
                    };
                    let stamp = placer.time(packet.timestamp, time);
                    if packet.payload.start != header.len() || !received.accept(id, place, stamp) {
                        break;
                    }
                    matched += 1;
                }
            }
            seen.matched += matched as u64;
            if matched < count {
                seen.moved += (count - matched) as u64;
                // Out of the places before any of them gets what belongs there.
                let bounce = &mut self.bounce[self.rest.len() * MESSAGE_BYTES..][..MESSAGE_BYTES];
                let bytes = received.gather(message, matched * about.segment, bounce);
                self.rest.push(Moved {
                    bytes,
                    segment: about.segment,
                    time,
                });
            }
        }
        drop(batch);
        self.tune.saw(seen);
        let moved = self
            .rest
            .iter()
            .zip(self.bounce.chunks_exact(MESSAGE_BYTES))
            .flat_map(|(moved, bytes)| {
                packets(&bytes[..moved.bytes], moved.segment).map(move |bytes| (bytes, moved.time))
            });
        if seen.moved > 0 {
            self.placer.place(window, moved);
        }
        Ok(Some(match (seen.messages, seen.moved) {
            (0, _) => Got::Nothing,
            (_, 0) => Got::AsGuessed,
            _ => Got::Something,
        }))
    }

    /// Reads how many messages the kernel has dropped, if it is time to.
    fn read_drops(&mut self, window: &Window) {
        let now = Instant::now();
        if self
            .drops_read
            .is_some_and(|read| now.saturating_duration_since(read) < DROPS)
        {
            return;
        }
        self.drops_read = Some(now);
        if let Ok(memory) = self.socket.mem_info() {
            window.note_drops(memory.drops.into());
        }
    }
}

/// The packets of a message; an empty message is one empty packet.
fn packets(bytes: &[u8], segment: usize) -> impl Iterator<Item = &[u8]> {
    bytes
        .is_empty()
        .then_some(bytes)
        .into_iter()
        .chain(bytes.chunks(segment.max(1)))
}

fn received_at(ns: Option<u64>) -> Timestamp {
    ns.map_or_else(Timestamp::default, |ns| Timestamp {
        ns,
        clock: Clock::Kernel,
    })
}

impl Filler for Receiver {
    fn fill(&mut self, window: &mut Window, patience: Duration) -> Result<Polled, SourceError> {
        let error = |socket: &UdpSocket, error: io::Error| {
            SourceError::new(
                format!("UDP {}", socket.local()),
                format!("cannot receive: {error}; `ip -s link` shows whether the interface is up"),
            )
        };
        let got = self
            .receive(window)
            .map_err(|why| error(&self.socket, why))?;
        if got == Got::AsGuessed && !window.wants_drops() {
            return Ok(Polled::Busy);
        }
        // What came out of order, or not at all, may have been dropped here.
        self.read_drops(window);
        if got != Got::Nothing {
            return Ok(Polled::Busy);
        }
        let ready = !patience.is_zero()
            && self
                .socket
                .wait(patience)
                .map_err(|why| error(&self.socket, why))?;
        Ok(if ready { Polled::Busy } else { Polled::Idle })
    }
}
