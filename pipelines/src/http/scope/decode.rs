//! Samples of one channel of a frame as float32, with NaN in place of missing packets.

use crate::kernels::convert::packed::Unpacker;
use crate::kernels::samples::{Be, Bf16, F16, Number, Walk, with_number};
use daq_core::frame::{FrameMeta, Present};
use daq_core::layout::{Layout, Order, Scalar};
use std::borrow::Cow;
use std::ops::Range;

/// Number of packed numbers that are unpacked together; a multiple of every group of packed numbers.
const PIECE: usize = 4096;

/// A frame whose samples can be decoded. Packed numbers are unpacked to `int16`.
pub(super) struct Samples<'a> {
    pub(super) meta: &'a FrameMeta,
    present: Present<'a>,
    bytes: Cow<'a, [u8]>,
    scalar: Scalar,
    complex: bool,
    order: Order,
    pub(super) channels: usize,
    /// Number of points of each channel in this frame.
    pub(super) points: usize,
    /// Size of the frame's payload in bytes.
    pub(super) payload: usize,
    /// Size of a sample in the payload in bits.
    sample_bits: u64,
}

impl<'a> Samples<'a> {
    /// Interprets a frame by `layout`. A frame can be shorter than its layout.
    pub(super) fn new(
        layout: &Layout,
        meta: &'a FrameMeta,
        present: Present<'a>,
        bytes: &'a [u8],
    ) -> Self {
        let payload = bytes.len().min(meta.length);
        let bytes = &bytes[..payload];
        let (bytes, scalar) = match layout.scalar.packing() {
            None => (Cow::Borrowed(bytes), layout.scalar),
            Some(packing) => {
                let mut numbers = Vec::with_capacity(bytes.len() * 4);
                let mut unpacker = Unpacker::new(packing, PIECE);
                unpacker.each_piece(bytes, |_, piece| numbers.extend_from_slice(piece));
                (Cow::Owned(numbers), Scalar::Int16)
            }
        };
        let channels = (layout.channels as usize).max(1);
        let number = scalar.bytes().unwrap_or(1);
        let points = bytes.len() / (number * layout.parts() * channels);
        Self {
            meta,
            present,
            bytes,
            scalar,
            complex: layout.complex,
            order: layout.order,
            channels,
            points: points.min(layout.points),
            payload,
            sample_bits: layout.sample_bits() as u64,
        }
    }

    /// Reads points of a channel into `re`, and into `im` if samples are complex. Missing points become NaN.
    pub(super) fn read(
        &self,
        channel: usize,
        range: Range<usize>,
        missing: &[Range<usize>],
        re: &mut Vec<f32>,
        im: &mut Vec<f32>,
    ) {
        let len = range.len();
        for values in [&mut *re, &mut *im] {
            values.clear();
        }
        re.resize(len, f32::NAN);
        im.resize(if self.complex { len } else { 0 }, f32::NAN);
        with_number!(
            self.scalar, N => self.gather::<N>(channel, range.start, re, im),
            // Packed numbers are unpacked to `int16`.
            _ => self.gather::<i16>(channel, range.start, re, im),
            Int8 i8, Uint8 u8, Int16 i16, Uint16 u16, Int32 i32, Uint32 u32, Int64 i64,
            Float16 F16, Bfloat16 Bf16, Float32 f32, Float64 f64,
            Int16be Be<i16>, Uint16be Be<u16>, Int32be Be<i32>, Uint32be Be<u32>, Float32be Be<f32>
        );
        for gap in missing {
            let gap = within(gap, &range);
            re[gap.clone()].fill(f32::NAN);
            if self.complex {
                im[gap].fill(f32::NAN);
            }
        }
    }

    fn gather<N: Number>(&self, channel: usize, first: usize, re: &mut [f32], im: &mut [f32]) {
        let numbers = N::cut(&self.bytes);
        let walk = Walk::of(self.order, self.channels, self.points);
        if self.complex {
            let pairs = numbers.as_chunks().0;
            walk.gather(pairs, channel, first, re, |[re, _]: [N::Raw; 2]| N::f32(re));
            walk.gather(pairs, channel, first, im, |[_, im]: [N::Raw; 2]| N::f32(im));
        } else {
            walk.gather(numbers, channel, first, re, N::f32);
        }
    }

    /// Returns the bytes of the samples, in little-endian numbers of [`scalar`](Self::scalar).
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the type of the decoded numbers.
    pub(super) const fn scalar(&self) -> Scalar {
        self.scalar
    }

    /// Returns the bytes of the payload that each missing packet has, in ascending order.
    fn gaps(&self) -> impl Iterator<Item = Range<u64>> {
        let meta = self.meta;
        let packets = meta.packets_per_frame;
        let is_complete =
            meta.arrived >= packets || meta.packet_sizes.rest == 0 && meta.packet_sizes.first == 0;
        let payload = self.payload as u64;
        let offset = move |i| meta.packet_sizes.offset(i, packets, payload);
        let bytes = move |packet| {
            let is_last = packet + 1 == packets;
            offset(packet)..if is_last { payload } else { offset(packet + 1) }
        };
        (0..if is_complete { 0 } else { packets })
            .filter(|packet| !self.present.is_present(*packet))
            .map(bytes)
    }

    /// Returns the ranges of points of `channel` whose packets are missing, in ascending order.
    pub(super) fn missing(&self, channel: usize) -> Vec<Range<usize>> {
        merged(self.gaps().map(|gap| self.points_of(gap, channel)))
    }

    /// Returns the missing ranges in an array of `len` elements, which have `bits` bits of the payload each, in ascending order.
    pub(super) fn missing_elements(&self, len: usize, bits: usize) -> Vec<Range<usize>> {
        merged(self.gaps().map(|gap| covered(gap, bits as u64, len)))
    }

    /// Returns the points of `channel` that have at least one byte in `bytes` of the payload.
    fn points_of(&self, bytes: Range<u64>, channel: usize) -> Range<usize> {
        let samples = covered(bytes, self.sample_bits, self.points * self.channels);
        let point = |sample: usize| match self.order {
            Order::Interleaved => sample.saturating_sub(channel).div_ceil(self.channels),
            Order::Planar => sample.saturating_sub(channel * self.points),
        };
        point(samples.start).min(self.points)..point(samples.end).min(self.points)
    }
}

/// Returns the elements of `bits` bits that have at least one bit in `bytes`, of `len` elements.
fn covered(bytes: Range<u64>, bits: u64, len: usize) -> Range<usize> {
    let limit = |element: u64| usize::try_from(element).map_or(len, |element| element.min(len));
    limit(bytes.start * 8 / bits)..limit((bytes.end * 8).div_ceil(bits))
}

/// Joins ranges in ascending order that touch each other.
fn merged(gaps: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for gap in gaps {
        match found.last_mut() {
            _ if gap.is_empty() => {}
            Some(last) if last.end >= gap.start => last.end = gap.end.max(last.end),
            _ => found.push(gap),
        }
    }
    found
}

/// Returns the part of `gap` inside `range`, relative to the start of `range`.
pub(super) fn within(gap: &Range<usize>, range: &Range<usize>) -> Range<usize> {
    let limit = |point: usize| point.clamp(range.start, range.end) - range.start;
    limit(gap.start)..limit(gap.end)
}
