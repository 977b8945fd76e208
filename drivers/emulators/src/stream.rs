//! The stream of an emulated device: packets that are produced at a given rate, and the FIFO that stores them.

use super::pattern::{Pattern, fill};
use daq_core::units::{BitRate, ByteSize};
use daq_drivers::fpga::transports::emulated::EmulatedOptions;
use daq_drivers::sim::Pacer;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Default size of the FIFO in bytes.
const FIFO: u64 = 1 << 20;

/// The state of a stream's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Data is available.
    Data,
    /// Data is available after this time.
    After(Duration),
    /// The stream has ended.
    Ended,
}

/// A stream of packets.
///
/// A stream without a rate waits for its reader. A stream with a rate does not wait: if its FIFO is full, whole packets
/// are lost, and the following payload shows the gap.
#[derive(Debug)]
pub struct Stream {
    pattern: Pattern,
    /// Size of a packet in bytes.
    packet: u64,
    /// True if the end of each packet is marked.
    is_marked: bool,
    /// Number of packets of the whole stream.
    limit: u64,
    /// Rate in packets per second.
    rate: Option<f64>,
    /// Maximum number of packets in the FIFO.
    room: u64,
    pacer: Option<Pacer>,
    /// Number of packets that were produced so far.
    come: u64,
    /// Ranges of packets in the FIFO; without a rate, all future packets.
    waiting: VecDeque<Range<u64>>,
    /// Number of bytes of the first waiting packet that were already read.
    taken: u64,
    lost: u64,
    /// Number of future packets that are dropped when they are produced.
    doomed: u64,
}

impl Stream {
    /// Creates the stream that `options` describe, at its beginning.
    pub fn new(options: &EmulatedOptions) -> Self {
        let packet = options.packet_bytes();
        let limit = options.packets.unwrap_or(u64::MAX);
        let ByteSize(fifo) = options.fifo.unwrap_or(ByteSize(FIFO));
        let is_free = options.rate.is_none();
        Self {
            pattern: options.pattern,
            packet,
            is_marked: options.packet.is_some(),
            limit,
            rate: options.rate.map(|BitRate(bits)| bits / 8.0 / packet as f64),
            // At least two packets, because one is read while the next is produced.
            room: (fifo / packet).max(2),
            pacer: None,
            come: if is_free { limit } else { 0 },
            waiting: std::iter::once(0..limit).filter(|_| is_free).collect(),
            taken: 0,
            lost: 0,
            doomed: 0,
        }
    }

    /// Returns whether data is available at the time `now`. The first call starts the clock of a stream with a rate.
    pub fn ready(&mut self, now: Instant) -> Ready {
        self.receive(now);
        if !self.waiting.is_empty() {
            return Ready::Data;
        }
        match &self.pacer {
            Some(pacer) if self.come < self.limit => Ready::After(pacer.until(now, self.come)),
            _ => Ready::Ended,
        }
    }

    /// Reads bytes of the stream. Returns the number of bytes, and true if the bytes end with a marked end of a packet
    /// or with the end of the stream. One call never reads beyond such an end.
    pub fn take(&mut self, into: &mut [u8]) -> (usize, bool) {
        let mut done = 0;
        while done < into.len()
            && let Some(run) = self.waiting.front_mut()
        {
            let number = run.start;
            let left = usize::try_from(self.packet - self.taken).unwrap_or(usize::MAX);
            let piece = left.min(into.len() - done);
            let at = number.wrapping_mul(self.packet).wrapping_add(self.taken);
            fill(self.pattern, self.packet, at, &mut into[done..done + piece]);
            done += piece;
            if piece < left {
                self.taken += piece as u64;
                continue;
            }
            self.taken = 0;
            run.start += 1;
            if run.is_empty() {
                self.waiting.pop_front();
            }
            if self.is_marked || number + 1 == self.limit {
                return (done, true);
            }
        }
        (done, false)
    }

    /// Drops the next packet of which no byte was read yet. If the FIFO has no such packet, drops the next packet that
    /// is produced.
    pub fn lose(&mut self) {
        self.lost += 1;
        let begun = u64::from(self.taken > 0);
        let next = match self.waiting.front() {
            Some(run) if run.start + begun < run.end => Some((0, run.start + begun)),
            _ => self.waiting.get(1).map(|run| (1, run.start)),
        };
        let Some((place, number)) = next else {
            self.doomed += 1;
            return;
        };
        let run = self.waiting[place].clone();
        self.waiting.remove(place);
        for part in [number + 1..run.end, run.start..number] {
            if !part.is_empty() {
                self.waiting.insert(place, part);
            }
        }
    }

    /// Makes at least this number of bytes available immediately, earlier than the stream's rate allows. Later bytes
    /// keep their times.
    pub fn hurry(&mut self, bytes: u64) {
        let until = self.come.saturating_add(bytes.div_ceil(self.packet));
        let until = until.min(self.limit);
        if self.come < until {
            self.waiting.push_back(self.come..until);
            self.come = until;
        }
    }

    /// Returns the number of dropped packets.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds the packets that were produced until `now` to the FIFO.
    fn receive(&mut self, now: Instant) {
        let Some(rate) = self.rate else {
            return;
        };
        let pacer = self.pacer.get_or_insert_with(|| Pacer::new(now, rate));
        let due = pacer.due(now).min(self.limit);
        if due <= self.come {
            return;
        }
        let held: u64 = self.waiting.iter().map(|run| run.end - run.start).sum();
        let kept = (due - self.come).min(self.room.saturating_sub(held));
        let doomed = self.doomed.min(kept);
        self.doomed -= doomed;
        let came = self.come + doomed..self.come + kept;
        match self.waiting.back_mut() {
            Some(last) if last.end == came.start => last.end = came.end,
            _ if !came.is_empty() => self.waiting.push_back(came),
            _ => {}
        }
        self.lost += due - self.come - kept;
        self.come = due;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::verify;

    fn options() -> EmulatedOptions {
        EmulatedOptions {
            packet: Some(ByteSize(64)),
            pattern: Pattern::Sequence,
            ..EmulatedOptions::default()
        }
    }

    /// Reads all available data in pieces of `piece` bytes. Returns the number of each whole packet.
    fn drain(stream: &mut Stream, piece: usize) -> Vec<u64> {
        let (mut numbers, mut packet) = (Vec::new(), Vec::new());
        loop {
            let mut bytes = vec![0; piece];
            let (taken, is_end) = stream.take(&mut bytes);
            packet.extend_from_slice(&bytes[..taken]);
            if is_end {
                let number = u64::from_le_bytes(packet[..8].try_into().unwrap());
                assert_eq!(verify(Pattern::Sequence, 64, number * 64, &packet), None);
                assert_eq!(packet.len(), 64);
                numbers.push(number);
                packet.clear();
            } else if taken < piece {
                return numbers;
            }
        }
    }

    /// If a stream with a rate is read without delay, no packet waits in the FIFO, so a future packet must be dropped.
    #[test]
    fn future_packet_can_be_lost() {
        let mut stream = Stream::new(&EmulatedOptions {
            packets: Some(6),
            rate: Some(BitRate(64.0 * 8.0)),
            ..options()
        });
        let start = Instant::now();
        assert_ne!(stream.ready(start + Duration::from_millis(1)), Ready::Ended);
        drain(&mut stream, 64);
        stream.lose();
        stream.lose();
        stream.ready(start + Duration::from_mins(1));
        let numbers = drain(&mut stream, 64);
        assert_eq!(numbers.last(), Some(&5));
        assert_eq!(stream.lost(), 2);
        let seen = numbers.len() as u64;
        assert_eq!(
            numbers[0],
            6 - seen,
            "only the next two packets are lost: {numbers:?}"
        );
        assert!(seen <= 4);
    }

    #[test]
    fn free_running_stream_waits_and_ends() {
        for piece in [1, 7, 63, 64, 65, 1000] {
            let mut stream = Stream::new(&EmulatedOptions {
                packets: Some(5),
                ..options()
            });
            let now = Instant::now();
            assert_eq!(stream.ready(now), Ready::Data);
            assert_eq!(drain(&mut stream, piece), [0, 1, 2, 3, 4]);
            assert_eq!(stream.ready(now), Ready::Ended);
            assert_eq!(stream.lost(), 0);
        }
    }

    #[test]
    fn stream_without_packets_ends_with_flag() {
        let mut stream = Stream::new(&EmulatedOptions {
            packets: Some(2),
            ..EmulatedOptions::default()
        });
        let mut bytes = vec![0; 6000];
        assert_eq!(stream.take(&mut bytes), (6000, false));
        assert_eq!(verify(Pattern::Counter, 4096, 0, &bytes), None);
        assert_eq!(stream.take(&mut bytes), (2192, true));
        assert_eq!(stream.take(&mut bytes), (0, false));
    }

    #[test]
    fn fifo_overflow_loses_complete_packets() {
        let mut stream = Stream::new(&EmulatedOptions {
            // One packet per millisecond, and a FIFO of 10 packets.
            rate: Some(BitRate(64.0 * 8.0 * 1000.0)),
            fifo: Some(ByteSize(640)),
            packets: Some(40),
            ..options()
        });
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis) + Duration::from_micros(500);
        assert_eq!(stream.ready(start), Ready::After(Duration::from_millis(1)));
        assert_eq!(stream.ready(at(4)), Ready::Data);
        assert_eq!(stream.take(&mut [0; 10]), (10, false));
        stream.ready(at(25));
        assert_eq!(stream.lost(), 15);
        stream.taken = 0;
        assert_eq!(drain(&mut stream, 64), (0..10).collect::<Vec<_>>());
        stream.ready(at(28));
        assert_eq!(drain(&mut stream, 64), [25, 26, 27]);
        assert_eq!(stream.ready(at(1000)), Ready::Data);
        assert_eq!(drain(&mut stream, 64), (28..38).collect::<Vec<_>>());
        assert_eq!(stream.ready(at(2000)), Ready::Ended);
        assert_eq!(stream.lost(), 17);
    }

    #[test]
    fn burst_arrives_early() {
        let mut stream = Stream::new(&EmulatedOptions {
            rate: Some(BitRate(64.0 * 8.0 * 1000.0)),
            packets: Some(20),
            ..options()
        });
        let start = Instant::now();
        assert!(matches!(stream.ready(start), Ready::After(_)));
        stream.hurry(600);
        assert_eq!(stream.ready(start), Ready::Data);
        assert_eq!(drain(&mut stream, 64), (0..10).collect::<Vec<_>>());
        let later = start + Duration::from_micros(11_500);
        assert_eq!(stream.ready(later), Ready::Data);
        assert_eq!(drain(&mut stream, 64), [10]);
        stream.hurry(u64::MAX);
        assert_eq!(drain(&mut stream, 64), (11..20).collect::<Vec<_>>());
        assert_eq!(stream.lost(), 0);
    }

    #[test]
    fn next_unstarted_packet_is_lost() {
        let mut stream = Stream::new(&EmulatedOptions {
            packets: Some(4),
            ..options()
        });
        stream.lose();
        assert_eq!(stream.take(&mut [0; 8]).0, 8);
        stream.lose();
        stream.taken = 0;
        assert_eq!(drain(&mut stream, 64), [1, 3]);
        stream.lose();
        assert_eq!(stream.lost(), 3);
    }
}
