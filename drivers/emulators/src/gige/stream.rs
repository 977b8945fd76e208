//! The stream of a camera: sends images, and sends packets again.

use super::{Options, fill};
use std::collections::VecDeque;
use std::net::{SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

const LEADER: u8 = 1;
const TRAILER: u8 = 2;
const PAYLOAD: u8 = 3;
const RESENT: u16 = 0x0100;
const UNAVAILABLE: u16 = 0x800c;

/// What the registers set for an acquisition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acquisition {
    pub(super) to: SocketAddrV4,
    /// Packet size, including IP and UDP headers.
    pub(super) packet: usize,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) pixel_format: u32,
    pub(super) bytes: usize,
}

/// An image in the camera's memory.
#[derive(Debug)]
struct Stored {
    block: u64,
    ticks: u64,
    bytes: Vec<u8>,
}

/// Sends the images of an acquisition.
#[derive(Debug)]
pub(super) struct Stream {
    socket: UdpSocket,
    acquisition: Acquisition,
    is_extended: bool,
    marks_resent: bool,
    keep: usize,
    interval: Duration,
    tick_rate: u32,
    left: Option<u64>,
    next: Instant,
    block: u64,
    stored: VecDeque<Stored>,
    /// Number of images sent.
    pub(super) images: u64,
    /// Number of packets sent, without packets that were sent again.
    pub(super) packets: u64,
}

impl Stream {
    pub(super) fn new(
        options: &Options,
        socket: UdpSocket,
        acquisition: Acquisition,
        left: Option<u64>,
    ) -> Self {
        Self {
            socket,
            acquisition,
            is_extended: options.extended,
            marks_resent: options.marks_resent,
            keep: options.keep.max(1),
            interval: options.interval,
            tick_rate: options.tick_rate,
            left,
            next: Instant::now() + options.interval,
            block: options.first_block,
            stored: VecDeque::new(),
            images: 0,
            packets: 0,
        }
    }

    /// Returns the time until the next image; `None` if all images were sent.
    pub(super) fn wait(&self) -> Option<Duration> {
        let wait = self.next.saturating_duration_since(Instant::now());
        (self.left != Some(0)).then_some(wait)
    }

    /// Sends the next image.
    pub(super) fn send(&mut self, ticks: u64) {
        let mut bytes = vec![0; self.acquisition.bytes];
        fill(self.images, &mut bytes);
        let image = Stored {
            block: self.block,
            ticks,
            bytes,
        };
        for id in 0..=self.count(&image) + 1 {
            self.send_packet(&image, id, 0);
            self.packets += 1;
        }
        if self.stored.len() == self.keep {
            self.stored.pop_front();
        }
        self.stored.push_back(image);
        self.images += 1;
        self.left = self.left.map(|left| left - 1);
        self.block += 1;
        if !self.is_extended && self.block == 0x1_0000 {
            self.block = 1;
        }
        self.next += self.interval;
    }

    /// Returns the number of nanoseconds since `since` in ticks.
    pub(super) fn ticks(&self, since: Instant) -> u64 {
        let ticks = since.elapsed().as_nanos() * u128::from(self.tick_rate) / 1_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    const fn header(&self) -> usize {
        if self.is_extended { 20 } else { 8 }
    }

    /// Returns the number of payload bytes per packet.
    fn piece(&self) -> usize {
        self.acquisition
            .packet
            .saturating_sub(28 + self.header())
            .max(1)
    }

    /// Returns the number of payload packets of an image.
    fn count(&self, image: &Stored) -> u32 {
        u32::try_from(image.bytes.len().div_ceil(self.piece())).unwrap_or(u32::MAX - 1)
    }

    /// Sends packets `first` to `last` of a block again. Returns the number of packets that were sent again, and the number of
    /// packets that are not stored.
    pub(super) fn resend(&self, block: u64, first: u32, last: u32) -> (u64, u64) {
        let image = self.stored.iter().find(|image| image.block == block);
        let (mut resent, mut unavailable) = (0, 0);
        for id in first..=last.min(first.saturating_add(0xffff)) {
            if let Some(image) = image.filter(|image| id <= self.count(image) + 1) {
                self.send_packet(image, id, if self.marks_resent { RESENT } else { 0 });
                resent += 1;
            } else {
                self.send_bytes(UNAVAILABLE, block, PAYLOAD, id, &[]);
                unavailable += 1;
            }
        }
        (resent, unavailable)
    }

    fn send_packet(&self, image: &Stored, id: u32, status: u16) {
        let Acquisition {
            width,
            height,
            pixel_format,
            ..
        } = self.acquisition;
        if id == 0 {
            let mut data = vec![0, 0, 0, 1];
            data.extend(image.ticks.to_be_bytes());
            for field in [pixel_format, width, height, 0, 0, 0] {
                data.extend(field.to_be_bytes());
            }
            self.send_bytes(status, image.block, LEADER, id, &data);
        } else if let Some(piece) = image.bytes.chunks(self.piece()).nth(id as usize - 1) {
            self.send_bytes(status, image.block, PAYLOAD, id, piece);
        } else {
            let [a, b, c, d] = height.to_be_bytes();
            self.send_bytes(status, image.block, TRAILER, id, &[0, 0, 0, 1, a, b, c, d]);
        }
    }

    fn send_bytes(&self, status: u16, block: u64, format: u8, id: u32, data: &[u8]) {
        let mut packet = Vec::with_capacity(self.header() + data.len());
        packet.extend(status.to_be_bytes());
        if self.is_extended {
            packet.extend([0, 0, format | 0x80, 0, 0, 0]);
            packet.extend(block.to_be_bytes());
            packet.extend(id.to_be_bytes());
        } else {
            packet.extend(&block.to_be_bytes()[6..]);
            packet.extend((u32::from(format) << 24 | id & 0xff_ffff).to_be_bytes());
        }
        packet.extend(data);
        // A receiver that is gone is no error: the control channel ends the acquisition.
        let _ = self.socket.send_to(&packet, self.acquisition.to);
    }
}
