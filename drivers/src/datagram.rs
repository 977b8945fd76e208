//! From datagrams to places: what the sources `udp` and `replay` have in common.

use crate::format::{Control, Format, Parsed, Reject};
use daq_core::frame::{Clock, Timestamp};
use daq_core::window::{Batch, Outcome, PacketId, Window};

/// Parses datagrams and puts their payload where it belongs.
#[derive(Debug)]
pub struct Placer {
    /// The source's name, for messages.
    name: String,
    format: Format,
    has_time: bool,
    told: Told,
}

/// Which kinds of refused packets were told of: each once, because one may come with every packet.
#[derive(Debug, Default)]
struct Told {
    rejects: Vec<&'static str>,
    placement: bool,
    other_heap: bool,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Done,
    /// It carries a message instead of data.
    Control(Control),
    /// It must wait for room.
    Held,
}

impl Placer {
    /// For the source `name`; each thread has its own.
    pub fn new(name: &str, format: Format) -> Self {
        let has_time = format.time_scale().is_some();
        // As many as there are kinds, so that the data path does not allocate.
        let told = Told {
            rejects: Vec::with_capacity(16),
            placement: false,
            other_heap: false,
        };
        Self {
            name: name.to_owned(),
            format,
            has_time,
            told,
        }
    }

    /// The format, which learns from the packets.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The format, which learns from the packets.
    pub fn format_mut(&mut self) -> &mut Format {
        &mut self.format
    }

    /// The time of a packet that carries `ticks` and was received at `received`.
    ///
    /// Where the format has a time of its own, no other is mixed with it.
    #[inline]
    pub fn time(&self, ticks: Option<u64>, received: Timestamp) -> Timestamp {
        if !self.has_time {
            return received;
        }
        match (ticks, self.format.time_scale()) {
            (Some(ticks), Some(scale)) => Timestamp {
                ns: scale.ns(ticks),
                clock: Clock::Sensor,
            },
            _ => Timestamp::default(),
        }
    }

    /// Places every datagram, each with the time when it was received.
    pub fn place<'d>(
        &mut self,
        window: &mut Window,
        datagrams: impl IntoIterator<Item = (&'d [u8], Timestamp)>,
    ) {
        let mut datagrams = datagrams.into_iter();
        loop {
            let mut batch = window.batch();
            let control = datagrams.find_map(|(bytes, received)| {
                match self.put(&mut batch, bytes, received, false) {
                    Put::Control(control) => Some(control),
                    Put::Done | Put::Held => None,
                }
            });
            drop(batch);
            let Some(control) = control else { return };
            self.heed(window, control);
        }
    }

    /// Counts a message, and takes its unit out of what is expected.
    fn heed(&mut self, window: &mut Window, control: Control) {
        window.control(1);
        let unit = match control {
            Control::EndOfStream { unit } => unit,
            Control::OtherHeap { unit, bytes } => {
                if bytes > 0 && !self.told.other_heap {
                    self.tell_other_heap(unit, bytes);
                }
                unit
            }
        };
        window.void(unit);
    }

    /// Places a datagram, unless a frame would be refused a slot for it, see [`Batch::has_room_for`]: then false.
    pub fn place_with_room(
        &mut self,
        window: &mut Window,
        bytes: &[u8],
        received: Timestamp,
    ) -> bool {
        // Asked and put in one batch: between batches the window moves on over frames that are complete.
        let put = self.put(&mut window.batch(), bytes, received, true);
        if let Put::Control(control) = put {
            self.heed(window, control);
        }
        put != Put::Held
    }

    /// Puts one datagram; `holds` = only if there is room for it.
    #[inline]
    fn put(
        &mut self,
        batch: &mut Batch<'_>,
        bytes: &[u8],
        received: Timestamp,
        holds: bool,
    ) -> Put {
        match self.format.parse(bytes) {
            Ok(Parsed::Data(packet)) => {
                let id = PacketId {
                    unit: packet.unit,
                    sub: packet.sub,
                };
                if holds && !batch.has_room_for_bytes(id, packet.payload.len()) {
                    return Put::Held;
                }
                let time = self.time(packet.timestamp, received);
                // Within the datagram: the parser has checked its length.
                let outcome = batch.put(id, &bytes[packet.payload], time);
                if outcome == Outcome::Rejected && !self.told.placement {
                    self.tell_placement(id);
                }
                Put::Done
            }
            Ok(Parsed::Control(control)) => Put::Control(control),
            Err(reject) => {
                batch.reject_unreadable(1);
                self.tell(&reject, bytes);
                Put::Done
            }
        }
    }

    #[cold]
    fn tell(&mut self, reject: &Reject, bytes: &[u8]) {
        let reason = reject.name();
        if !self.told.rejects.contains(&reason)
            && self.told.rejects.len() < self.told.rejects.capacity()
        {
            self.told.rejects.push(reason);
            let start = &bytes[..bytes.len().min(32)];
            tracing::warn!(
                "source {}: a packet of {} bytes is rejected ({reason}): {reject}. It begins with {start:02x?}. More of \
                 the kind are only counted, as `rejected`",
                self.name,
                bytes.len(),
            );
        }
    }

    #[cold]
    fn tell_other_heap(&mut self, unit: u64, bytes: u64) {
        self.told.other_heap = true;
        let wanted = self.format.places().unit_bytes;
        tracing::info!(
            "source {}: heap {unit} has {bytes} bytes, not {wanted}, so it is no frame: its packets are counted as \
             `control`, as those of descriptors are, and so are more of the kind. If it carries samples, have the sender \
             send descriptors in a heap of their own, or set `heap = {bytes}`",
            self.name,
        );
    }

    #[cold]
    fn tell_placement(&mut self, id: PacketId) {
        self.told.placement = true;
        tracing::warn!(
            "source {}: packet {} is rejected, its number is far from those before, or that of a heap without data; \
             several far ones in a row that agree open a new epoch. More of the kind are only counted, as `rejected`",
            self.name,
            id.unit,
        );
    }
}
