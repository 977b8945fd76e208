//! Places the payload of each GVSP packet in its frame.

use super::blocks::{Arrival, Block, Blocks, CameraCounts, ResendLimits};
use super::gvcp::Resend;
use super::gvsp::{
    self, Content, EXTENDED_HEADER, IP_UDP, Leader, Malformed, Packet, STANDARD_HEADER,
};
use super::number;
use super::pixel::{Code, PixelFormat};
use crate::packet::datagram::log_reject;
use daq_core::frame::{Clock, Timestamp};
use daq_core::ledger::{FAR_NUMBER, Rejections};
use daq_core::reorder::{Batch, Geometry, Numbering, Outcome, PacketId, ReorderWindow};
use std::collections::VecDeque;
use std::time::Instant;

/// Maximum number of leaders that are stored until the window opens their epoch.
const MAX_FAR_LEADERS: usize = 64;

/// The images that the configuration declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The pixel format.
    pub format: PixelFormat,
}

impl Image {
    /// Returns the size of an image in bytes, or `None` if its lines are not a whole number of bytes: cameras differ in
    /// whether they then pad each line.
    pub fn bytes(&self) -> Option<u64> {
        let bits = u64::from(self.width) * u64::from(self.format.bits());
        let line = bits.is_multiple_of(8).then_some(bits / 8)?;
        line.checked_mul(self.height.into())
    }
}

/// What the source knows about the camera after it was set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Size of the packets in bytes, including IP and UDP headers.
    pub packet_size: usize,
    /// Ticks of the camera's clock per second; 0 if unknown.
    pub tick_rate: u64,
    /// Whether the camera can send packets again.
    pub can_resend: bool,
}

/// How blocks are divided into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    /// Number of payload packets of a block.
    packets: u32,
    is_extended: bool,
}

/// Reason why a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Reject {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the packet arrived before the camera was set up")]
    Early,
    #[error("the block id has {} bits, but the first one had {}", bits(*.is_extended), bits(!.is_extended))]
    IdMode { is_extended: bool },
    #[error("packet id {id} exceeds the {packets} payload packets of a block")]
    PacketId { id: u32, packets: u32 },
    #[error("payload packet {id} has {bytes} bytes of payload, but must have {expected}")]
    Length {
        id: u32,
        bytes: usize,
        expected: usize,
    },
    #[error("the leader of block {block} does not match the configuration")]
    Image { block: u64 },
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

const fn bits(is_extended: bool) -> u32 {
    if is_extended { 64 } else { 16 }
}

impl Reject {
    /// Returns the name of the reason in the ledger.
    const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.name(),
            Self::Early => "early",
            Self::IdMode { .. } => "id_mode",
            Self::PacketId { .. } => "packet_id",
            Self::Length { .. } => "length",
            Self::Image { .. } | Self::Mismatch(_) => "image",
        }
    }
}

/// The camera sends other images than the configuration declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the camera sends {} × {} pixels, {}{}, but the configuration declares {} × {}, {}: set `width`, `height` and \
     `pixel_format` to what the camera sends, or add the camera's registers for them to `registers`",
    sent.width, sent.height, Code(sent.pixel_format), padded(sent.padding), declared.width, declared.height, declared.format
)]
pub struct Mismatch {
    sent: Leader,
    declared: Image,
}

const fn padded(padding: (u16, u16)) -> &'static str {
    if padding.0 == 0 && padding.1 == 0 {
        ""
    } else {
        " with padding, which is not supported"
    }
}

/// The blocks of which only the leader or the trailer arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Empty {
    /// Number of the last of these blocks.
    last: u64,
    /// Number of these blocks since the last payload.
    blocks: u64,
    /// Whether the trailer of the last block arrived. Its payload may still follow otherwise.
    is_ended: bool,
    /// Number of these blocks before the first payload, which no gap in the numbers shows.
    before_first: u64,
}

impl Empty {
    /// Records the leader or the trailer of block `number`.
    fn announce(&mut self, number: u64, is_trailer: bool) {
        if number > self.last {
            (self.last, self.is_ended) = (number, is_trailer);
            self.blocks += 1;
        } else if number == self.last {
            self.is_ended |= is_trailer;
        }
    }

    /// Records payload of block `number`.
    fn end(&mut self, number: u64, is_first: bool) {
        if is_first {
            let own = u64::from(self.last == number && self.blocks > 0);
            self.before_first = self.blocks - own;
        }
        (self.blocks, self.is_ended) = (0, false);
    }

    /// Returns the number of blocks whose payload is missing without a gap in the numbers.
    fn absent(&self) -> u64 {
        let may_follow = u64::from(self.blocks > 0 && !self.is_ended);
        self.before_first + self.blocks - may_follow
    }
}

/// Places the payload of packets in the window.
#[derive(Debug)]
pub struct Placer {
    /// Name of the source, for messages.
    name: String,
    image: Image,
    limits: Option<ResendLimits>,
    setup: Option<Setup>,
    /// Known from the first packet.
    division: Option<Division>,
    open: usize,
    blocks: Blocks,
    /// The last leaders that belong to a new epoch if payload of their blocks is placed: of blocks that are not open, or with another
    /// time than the open block.
    far: VecDeque<(u64, Timestamp)>,
    /// The epoch of the packet that was placed last.
    epoch: u64,
    empty: Empty,
    has_placed: bool,
    /// Why the first leader does not match the configuration.
    mismatch: Option<Reject>,
    rejections: Rejections,
}

impl Placer {
    /// Creates a placer for the source `name`. `open` is the maximum number of open frames. `limits` is `None` if lost
    /// packets are not requested again.
    pub fn new(
        name: &str,
        image: Image,
        open: usize,
        limits: Option<ResendLimits>,
        counts: CameraCounts,
    ) -> Self {
        Self {
            name: name.to_owned(),
            image,
            limits,
            setup: None,
            division: None,
            open,
            blocks: Blocks::new(open, 1, false, counts),
            far: VecDeque::with_capacity(MAX_FAR_LEADERS),
            epoch: 0,
            empty: Empty::default(),
            has_placed: false,
            mismatch: None,
            rejections: Rejections::default(),
        }
    }

    /// Counts rejected packets by reason in `rejections`.
    #[must_use]
    pub fn with_rejections(mut self, rejections: Rejections) -> Self {
        self.rejections = rejections;
        self
    }

    /// Begins an epoch, because the camera was set up.
    pub fn begin(&mut self, window: &mut ReorderWindow, setup: Setup) {
        window.restart();
        if setup.tick_rate > 0 {
            // A leader that is sent again may arrive after the payload.
            window.await_times();
        }
        self.count_empty(window);
        self.blocks.close_all();
        self.far.clear();
        self.setup = Some(setup);
        self.limit();
    }

    /// Counts the payload of the blocks of which only leaders and trailers arrived, because no later block shows that it is
    /// missing.
    fn count_empty(&mut self, window: &mut ReorderWindow) {
        let blocks = std::mem::take(&mut self.empty).absent();
        if let Some(division) = self.division.filter(|_| blocks > 0) {
            window.count_absent(blocks * u64::from(division.packets));
        }
    }

    fn limit(&mut self) {
        let can_resend = self.setup.is_some_and(|setup| setup.can_resend);
        self.blocks.set_limits(self.limits.filter(|_| can_resend));
    }

    /// Returns the requests for lost packets that are to be sent. The caller removes them.
    pub const fn requests(&mut self) -> &mut Vec<Resend> {
        &mut self.blocks.requests
    }

    /// Returns whether packets are missing that may be requested.
    pub fn has_holes(&self) -> bool {
        self.blocks.has_holes()
    }

    /// Requests lost packets that no later packet shows, and repeats requests.
    pub fn sweep(&mut self, now: Instant) {
        self.blocks.sweep(now);
    }

    /// Counts the packets that were announced or requested and did not arrive, because no more packets will arrive.
    pub fn finish(&mut self, window: &mut ReorderWindow) {
        self.count_empty(window);
        self.blocks.close_all();
    }

    /// Returns why no frame can be received: the first leader does not match the configuration.
    pub fn mismatch(&self) -> Option<String> {
        let mismatch = self.mismatch.as_ref().filter(|_| !self.has_placed);
        mismatch.map(Reject::to_string)
    }

    /// Places the payload of every datagram. Returns the index of the last datagram that had already arrived, or `None` if no
    /// datagram had.
    pub fn place<'d>(
        &mut self,
        window: &mut ReorderWindow,
        datagrams: impl IntoIterator<Item = &'d [u8]>,
        now: Instant,
    ) -> Option<usize> {
        let mut datagrams = datagrams.into_iter().peekable();
        if self.division.is_none() {
            // The window must know the number of packets per block before it gets the first packet.
            while let Some(datagram) = datagrams.peek() {
                if self.divide(window, datagram) {
                    break;
                }
                let reject = gvsp::parse(datagram).map_or_else(Reject::from, |_| Reject::Early);
                window.reject(1);
                self.log(&reject, datagram);
                datagrams.next();
            }
        }
        let mut duplicate = None;
        window.with_batch(|batch| {
            for (i, datagram) in datagrams.enumerate() {
                match self.put(batch, datagram, now) {
                    Ok(true) => duplicate = Some(i),
                    Ok(false) => {}
                    Err(reject) => {
                        batch.reject_unreadable(1);
                        self.log(&reject, datagram);
                    }
                }
            }
        });
        duplicate
    }

    /// Determines the number of packets per block from the header of the first packet. Returns whether it is known.
    #[cold]
    fn divide(&mut self, window: &mut ReorderWindow, datagram: &[u8]) -> bool {
        let (Some(setup), Ok(packet)) = (self.setup, gvsp::parse(datagram)) else {
            return false;
        };
        let is_extended = packet.is_extended;
        let planned = *window.geometry();
        let geometry = geometry(planned.frame_bytes, setup.packet_size, is_extended);
        let packets = geometry.packets_per_frame;
        window.pin(Geometry {
            packets_per_frame: packets,
            first_bytes: geometry.first_bytes,
            packet_bytes: geometry.packet_bytes,
            numbering: geometry.numbering,
            ..planned
        });
        self.division = Some(Division {
            packets,
            is_extended,
        });
        let counts = self.blocks.counts.clone();
        self.blocks = Blocks::new(self.open, packets, is_extended, counts);
        self.limit();
        true
    }

    /// Places one datagram. Returns whether the packet had already arrived.
    #[inline]
    fn put(
        &mut self,
        batch: &mut Batch<'_>,
        datagram: &[u8],
        now: Instant,
    ) -> Result<bool, Reject> {
        let packet = gvsp::parse(datagram)?;
        let Some(Division {
            packets,
            is_extended,
        }) = self.division
        else {
            return Err(Reject::Early);
        };
        if packet.is_extended != is_extended {
            let is_extended = packet.is_extended;
            return Err(Reject::IdMode { is_extended });
        }
        let number = number::number(packet.block, is_extended, self.blocks.newest());
        match packet.content {
            Content::Payload(payload) => self.put_payload(batch, &packet, number, payload, now),
            Content::Leader(leader) => self.put_leader(batch, &packet, number, leader, now),
            Content::OtherLeader { kind } => {
                Err(self.refuse(number, Malformed::PayloadType { kind }.into()))
            }
            Content::Trailer => Ok(self.put_trailer(batch, &packet, number, packets, now)),
            Content::Unavailable { is_temporary } => {
                batch.control(1);
                self.blocks.counts.unavailable.add(1);
                if !is_temporary {
                    self.blocks.give_up(number);
                }
                Ok(false)
            }
        }
    }

    #[inline]
    fn put_payload(
        &mut self,
        batch: &mut Batch<'_>,
        packet: &Packet<'_>,
        number: u64,
        payload: &[u8],
        now: Instant,
    ) -> Result<bool, Reject> {
        let (id, packets) = (packet.id, batch.geometry().packets_per_frame);
        let index = id.wrapping_sub(1);
        if index >= packets {
            return Err(Reject::PacketId { id, packets });
        }
        let expected = batch.geometry().extent(index).len();
        if payload.len() != expected {
            return Err(Reject::Length {
                id,
                bytes: payload.len(),
                expected,
            });
        }
        let block = self.blocks.get(number);
        let time = match block {
            Some(block) if block.is_refused => {
                return Err(Reject::Image {
                    block: packet.block,
                });
            }
            Some(block) => {
                let time = block.time;
                self.far_time(number).unwrap_or(time)
            }
            None => self.far_time(number).unwrap_or_default(),
        };
        let id = PacketId {
            unit: number,
            sub: index,
        };
        match batch.place(id, payload, time) {
            Outcome::Placed => {
                self.follow(batch.epoch(), number, packet.id, time);
                let _ = self.blocks.arrive(number, packet.id, packet.is_resent, now);
                Ok(false)
            }
            Outcome::RingFull => {
                self.follow(batch.epoch(), number, packet.id, time);
                if let Some(block) = self.blocks.get(number) {
                    block.is_counted = true;
                }
                self.blocks.give_up(number);
                Ok(false)
            }
            Outcome::Duplicate => Ok(true),
            Outcome::Late | Outcome::BeforeStart | Outcome::Repeated => Ok(false),
            Outcome::Rejected | Outcome::Kept => {
                self.log_far(packet.block);
                Ok(false)
            }
        }
    }

    /// Returns the time in the leader of block `number` that arrived before the window accepted payload of the block, or before it
    /// opened the epoch of the block.
    fn far_time(&self, number: u64) -> Option<Timestamp> {
        let mut far = self.far.iter().rev();
        let (_, time) = far.find(|(block, _)| *block == number)?;
        Some(*time)
    }

    /// Stores the time in the leader of block `number`, which may begin an epoch.
    fn keep_far(&mut self, number: u64, time: Timestamp) {
        if self.far.len() == MAX_FAR_LEADERS {
            self.far.pop_front();
        }
        self.far.push_back((number, time));
    }

    /// Opens block `number`, because the window accepted its packet `id` in the epoch `epoch`.
    #[inline]
    fn follow(&mut self, epoch: u64, number: u64, id: u32, time: Timestamp) {
        let is_first = !std::mem::replace(&mut self.has_placed, true);
        self.empty.end(number, is_first);
        let is_other = std::mem::replace(&mut self.epoch, epoch) != epoch;
        // The window opened the frame, so a block before the newest one is open too, unless the newest one was a stray.
        let is_behind = self.blocks.newest().is_some_and(|newest| number <= newest);
        let is_epoch = is_other
            || !self.blocks.is_near(number)
            || is_behind && self.blocks.get(number).is_none();
        self.far.clear();
        if is_epoch {
            self.blocks.close_all();
        }
        if self.blocks.newest().is_none_or(|newest| newest < number) {
            self.blocks.open(number);
            if let Some(block) = self.blocks.get(number) {
                block.time = time;
            }
            if is_epoch {
                // The window kept the packets before the one that confirmed the epoch.
                self.blocks.assume_before(number, id);
            }
        }
    }

    fn put_leader(
        &mut self,
        batch: &mut Batch<'_>,
        packet: &Packet<'_>,
        number: u64,
        leader: Leader,
        now: Instant,
    ) -> Result<bool, Reject> {
        let declared = self.image;
        let is_image = leader.pixel_format == declared.format.code
            && (leader.width, leader.height) == (declared.width, declared.height)
            && leader.padding == (0, 0);
        if !is_image {
            let mismatch = Mismatch {
                sent: leader,
                declared,
            };
            return Err(self.refuse(number, mismatch.into()));
        }
        self.open_near(number);
        let time = self.time(leader.ticks);
        let arrival = self.blocks.arrive(number, 0, packet.is_resent, now);
        let is_other = |block: &mut Block| arrival == Arrival::Repeated && block.time != time;
        if self.blocks.get(number).is_none_or(is_other) {
            // Camera acquisitions can begin with the same number again.
            self.keep_far(number, time);
        } else if arrival == Arrival::Repeated {
            batch.repeated(1);
            return Ok(true);
        }
        batch.control(1);
        self.announce(number, false);
        if let Some(block) = self.blocks.get(number).filter(|_| arrival == Arrival::New) {
            (block.time, block.is_refused) = (time, false);
            if block.is_ended && block.has_payload() {
                end(batch, number, time);
            }
        }
        Ok(false)
    }

    /// Opens block `number` for its leader, unless the block is far from the open ones.
    fn open_near(&mut self, number: u64) {
        if self.blocks.is_near(number) {
            self.blocks.open(number);
        }
    }

    /// Refuses the payload of block `number`, because of its leader. Returns `reject`.
    fn refuse(&mut self, number: u64, reject: Reject) -> Reject {
        self.open_near(number);
        if let Some(block) = self.blocks.get(number) {
            block.is_refused = true;
        }
        self.mismatch.get_or_insert(reject);
        self.blocks.counts.mismatched.add(1);
        reject
    }

    /// Handles a trailer. Returns whether it had already arrived.
    fn put_trailer(
        &mut self,
        batch: &mut Batch<'_>,
        packet: &Packet<'_>,
        number: u64,
        packets: u32,
        now: Instant,
    ) -> bool {
        let id = packets + 1;
        if self.blocks.arrive(number, id, packet.is_resent, now) == Arrival::Repeated
            && self.far_time(number).is_none()
        {
            batch.repeated(1);
            return true;
        }
        batch.control(1);
        self.announce(number, true);
        if let Some(block) = self.blocks.get(number)
            && !block.is_refused
        {
            block.is_ended = true;
            // A camera that sends no payload is silent. If payload follows, the numbers show what is missing.
            if block.has_payload() {
                end(batch, number, block.time);
            }
        }
        false
    }

    /// Counts block `number` as empty if none of its payload has arrived.
    fn announce(&mut self, number: u64, is_trailer: bool) {
        let block = self.blocks.get(number);
        if block.is_none_or(|block| !block.has_payload() && !block.is_refused) {
            self.empty.announce(number, is_trailer);
        }
    }

    /// Converts a time of the camera.
    fn time(&self, ticks: u64) -> Timestamp {
        match self.setup {
            Some(Setup { tick_rate, .. }) if tick_rate > 0 => {
                let ns = u128::from(ticks) * 1_000_000_000 / u128::from(tick_rate);
                Timestamp {
                    ns: u64::try_from(ns).unwrap_or(u64::MAX),
                    clock: Clock::Sensor,
                }
            }
            _ => Timestamp::default(),
        }
    }

    #[cold]
    fn log(&self, reject: &Reject, datagram: &[u8]) {
        log_reject(
            &self.name,
            &self.rejections,
            reject.name(),
            reject,
            datagram,
        );
    }

    /// Logs the first packet that the window rejects or keeps until it is confirmed; the window counts them.
    #[cold]
    fn log_far(&self, block: u64) {
        let message = format_args!(
            "a packet belongs to block {block}, far from the previous blocks; the packet is accepted if the next packets are \
             consistent with it"
        );
        if self.rejections.count(FAR_NUMBER, 0, message) {
            tracing::warn!(
                "source {}: {message}. Further such packets are only counted",
                self.name
            );
        }
    }
}

/// Ends the frame of block `number`: all its packets are expected.
fn end(batch: &mut Batch<'_>, number: u64, time: Timestamp) {
    let id = PacketId {
        unit: number,
        sub: batch.geometry().packets_per_frame - 1,
    };
    batch.end(id, time);
}

/// Returns how blocks of `frame_bytes` bytes are divided into packets of `packet_size` bytes, including IP and UDP headers.
pub(super) fn geometry(frame_bytes: usize, packet_size: usize, is_extended: bool) -> Geometry {
    let header = if is_extended {
        EXTENDED_HEADER
    } else {
        STANDARD_HEADER
    };
    let payload = packet_size.saturating_sub(IP_UDP + header).max(1);
    let packets = u32::try_from(frame_bytes.div_ceil(payload)).unwrap_or(u32::MAX);
    Geometry {
        first_bytes: payload.min(frame_bytes),
        frame_bytes,
        numbering: Numbering {
            width: 64,
            step: 1,
            packets_per_unit: packets,
        },
        ..Geometry::new(packets, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_payload_are_absent_once() {
        let mut empty = Empty::default();
        // A stop between the leader and the first payload.
        empty.announce(5, false);
        assert_eq!(empty.absent(), 0);
        empty.announce(5, true);
        assert_eq!(empty.absent(), 1);
        empty.announce(6, false);
        assert_eq!(empty.absent(), 1);
        // The first payload is of block 6, so only block 5 is absent, whatever follows.
        empty.end(6, true);
        assert_eq!(empty.absent(), 1);
        empty.announce(7, false);
        empty.end(7, false);
        assert_eq!(empty.absent(), 1);
        // Blocks at the end.
        empty.announce(8, false);
        empty.announce(9, false);
        assert_eq!(empty.absent(), 2);
        empty.announce(9, true);
        assert_eq!(empty.absent(), 3);
    }
}
