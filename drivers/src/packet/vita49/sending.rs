//! Timestamps of packets that are sent, and the context of their stream.
//!
//! The times of frames may be inexact, such as those at which Linux received packets, but the timestamps of a stream must agree
//! with its sample rate. So only the first packet has the time of its frame. The times of the packets after it follow from
//! their numbers and the sample rate, until they differ from the times of the frames by more than half a second.

use super::context::{self, PayloadFormat};
use super::prologue::{self, Fraction, Seconds, Stamp};
use daq_core::layout::{Layout, Scalar};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of picoseconds per second.
const SECOND: i128 = 1_000_000_000_000;
/// Maximum difference between the timestamp of a packet and the time of its frame in picoseconds.
const MAX_DIFFERENCE: i128 = SECOND / 2;
/// Class identifier of DIFI (IEEE-ISTO 4900-2021): no padding, company identifier 6A-62-1E, information class 0, and packet
/// class 0, the standard flow of signal data.
const DIFI: u64 = 0x6a_621e_0000_0000;
/// Packet class of context packets in DIFI: the standard flow of signal context.
const DIFI_CONTEXT: u64 = 1;

/// Relates the numbers of packets to times.
#[derive(Debug)]
pub(super) struct Sending {
    /// Duration of a packet in picoseconds: numerator and denominator.
    period: (i128, i128),
    /// Number of samples per channel in a packet.
    samples: u64,
    /// Class identifier of the packets.
    pub(super) class: Option<u64>,
    /// The type of the samples, if VITA 49 defines it.
    format: Option<PayloadFormat>,
    /// Number of samples per channel in 1,000,000 s.
    per_million_seconds: u64,
    /// Number of the packet with a known time.
    anchor: AtomicU64,
    /// Time of this packet in nanoseconds since 1970; 0 before the first packet with a time.
    anchor_ns: AtomicU64,
}

impl Sending {
    /// Returns the times of packets with `layout`, of which 1,000,000 s contain `per_million_seconds` samples per channel.
    pub(super) fn new(layout: &Layout, per_million_seconds: u64) -> Self {
        let samples = layout.points as u64;
        let is_difi = layout.complex
            && layout.channels == 1
            && matches!(layout.scalar, Scalar::Int8 | Scalar::Int16be);
        Self {
            period: (
                i128::from(samples) * SECOND * 1_000_000,
                i128::from(per_million_seconds.max(1)),
            ),
            samples,
            class: is_difi.then_some(DIFI),
            format: PayloadFormat::of(layout),
            per_million_seconds,
            anchor: AtomicU64::new(0),
            anchor_ns: AtomicU64::new(0),
        }
    }

    /// Returns the timestamp of packet `number`, whose frame has the time `ns` in nanoseconds since 1970, if it is known. Without
    /// any known time, returns a count of samples.
    pub(super) fn stamp(&self, number: u64, ns: Option<u64>) -> Stamp {
        let Some(time) = self.time(number, ns) else {
            return Stamp {
                reference: Seconds::None,
                unit: Fraction::FreeRunning,
                seconds: 0,
                fraction: number.wrapping_mul(self.samples),
            };
        };
        Stamp {
            reference: Seconds::Utc,
            unit: Fraction::Picoseconds,
            seconds: u32::try_from(time / SECOND).unwrap_or(u32::MAX),
            fraction: u64::try_from(time % SECOND).unwrap_or(0),
        }
    }

    /// Writes the context packet of `stream` with the time `stamp` to `packets`, which contain the previous one.
    pub(super) fn describe(&self, stream: u32, stamp: &Stamp, packets: &mut Vec<Vec<u8>>) {
        let Some(format) = &self.format else {
            return;
        };
        let is_first = packets.is_empty();
        if is_first {
            packets.push(Vec::with_capacity(
                prologue::MAX_PROLOGUE + context::MAX_BODY,
            ));
        }
        let Some(packet) = packets.first_mut() else {
            return;
        };
        let count = packet.get(1).map_or(0, |byte| byte.wrapping_add(1));
        packet.clear();
        let class = self.class.map(|class| class | DIFI_CONTEXT);
        let fields = context::fields(self.class.is_some(), is_first);
        let body = context::body_len(fields);
        prologue::append(prologue::CONTEXT, stream, class, stamp, count, body, packet);
        context::append(fields, self.per_million_seconds, *format, packet);
    }

    /// Returns the time of packet `number` in picoseconds since 1970, which is not negative.
    fn time(&self, number: u64, ns: Option<u64>) -> Option<i128> {
        let anchor_ns = self.anchor_ns.load(Ordering::Relaxed);
        let frame = ns.map(|ns| i128::from(ns) * 1000);
        let expected = (anchor_ns > 0)
            .then(|| self.after_anchor(number, anchor_ns))
            .flatten();
        match (expected, frame) {
            (Some(expected), None) => Some(expected),
            (Some(expected), Some(frame)) if (expected - frame).abs() <= MAX_DIFFERENCE => {
                Some(expected)
            }
            (_, Some(frame)) => {
                // One thread sends, so the two values belong together.
                self.anchor.store(number, Ordering::Relaxed);
                self.anchor_ns.store(ns.unwrap_or(0), Ordering::Relaxed);
                Some(frame)
            }
            (None, None) => None,
        }
    }

    /// Returns the time of packet `number` that follows from the anchor, unless it is before 1970 or too far away.
    fn after_anchor(&self, number: u64, anchor_ns: u64) -> Option<i128> {
        let anchor = self.anchor.load(Ordering::Relaxed);
        let packets = i128::from(number.wrapping_sub(anchor).cast_signed());
        let (period, parts) = self.period;
        let elapsed = packets.checked_mul(period)?.div_euclid(parts);
        let time = (i128::from(anchor_ns) * 1000).checked_add(elapsed)?;
        (time >= 0).then_some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::layout::Samples;

    /// Packets of 100 complex samples at `rate` Hz.
    fn sending(rate: u64) -> Sending {
        let samples = Samples {
            complex: true,
            ..Samples::default()
        };
        Sending::new(&samples.layout(200).unwrap(), rate * 1_000_000)
    }

    fn picoseconds(stamp: &Stamp) -> i128 {
        assert_eq!(
            (stamp.reference, stamp.unit),
            (Seconds::Utc, Fraction::Picoseconds)
        );
        i128::from(stamp.seconds) * SECOND + i128::from(stamp.fraction)
    }

    const NOW: u64 = 1_700_000_000_999_999_999;

    #[test]
    fn times_follow_from_the_rate_although_those_of_frames_are_inexact() {
        let sending = sending(3_000_000);
        for n in 0..1_000_000_u64 {
            let exact = i128::from(NOW) * 1000 + i128::from(n) * 100 * SECOND / 3_000_000;
            let jitter = n * 7919 % 1_000_000;
            let frame = u64::try_from(exact / 1000).unwrap() + jitter;
            let found = sending.stamp(5000 + n, Some(if n == 0 { NOW } else { frame }));
            assert_eq!(picoseconds(&found), exact);
        }
    }

    #[test]
    fn another_time_of_frames_begins_another_stream() {
        let sending = sending(1_000_000);
        let later = NOW + 3_000_000_000;
        for (number, ns) in [(7, NOW), (8, later), (2, NOW), (u64::MAX, later)] {
            let found = sending.stamp(number, Some(ns));
            assert_eq!(picoseconds(&found), i128::from(ns) * 1000);
        }
        // 100 µs after the packet with the number 2^64 - 1, whose successor is 0.
        let found = picoseconds(&sending.stamp(0, None));
        assert_eq!(found, (i128::from(later) + 100_000) * 1000);
    }

    #[test]
    fn frames_without_time_have_a_count_of_samples() {
        let stamp = sending(1_000_000).stamp(9, None);
        let wanted = (Seconds::None, Fraction::FreeRunning, 900);
        assert_eq!((stamp.reference, stamp.unit, stamp.fraction), wanted);
    }
}
