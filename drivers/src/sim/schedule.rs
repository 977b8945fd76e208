//! The packets of a simulation: their numbers, faults and order of arrival.
//!
//! [`Schedule`] yields the packets that the sender produces, each with its number and its [`Disposition`].
//! [`Arrivals`] yields the packets that reach the window. In each step of the schedule:
//!
//! 1. the packet itself arrives once, twice, damaged or not yet;
//! 2. then all delayed packets that are due arrive, oldest first: a reordered packet when `reorder_by` more packets were
//!    produced, a late one when a packet at least `window` frames later has arrived with a readable number.
//!
//! When the sequence number restarts or jumps (`restart_at`, `jump`) and at the end, all delayed packets arrive first.
//! Schedule and arrivals depend only on their configuration, so a test can predict the ledger.

use super::faults::{Disposition, FaultGenerator, Faults};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::VecDeque;

/// A jump of the sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jump {
    /// Number of packets before the jump.
    pub at: u64,
    /// Number of sequence numbers that are skipped.
    pub by: u64,
}

/// The sequence numbers of the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Sequence number of the first packet.
    pub start: u64,
    /// Number of packets after which the numbers restart at 0.
    pub restart_at: Option<u64>,
    /// A jump of the numbers.
    pub jump: Option<Jump>,
}

/// A packet that the sender produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Number of packets before this packet in the run.
    pub index: u64,
    /// Sequence number, before it is reduced to the bits that a packet contains.
    pub sequence: u64,
    /// Number of jumps and restarts before this packet.
    pub breaks: u32,
    /// What happens to this packet.
    pub disposition: Disposition,
}

/// The packets that a sender produces, in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    count: Count,
    generator: FaultGenerator,
    next: u64,
    end: u64,
    sequence: u64,
    breaks: u32,
}

impl Schedule {
    /// Creates a schedule of `packets` packets (`None` for no end) with the numbers of `count` and `faults`.
    pub fn new(count: Count, faults: &Faults, packets: Option<u64>) -> Self {
        let end = packets.unwrap_or(u64::MAX);
        Self {
            count,
            generator: faults.generator(),
            next: 0,
            end,
            sequence: count.start,
            breaks: 0,
        }
    }

    /// Returns the number of packets produced so far.
    pub const fn produced(&self) -> u64 {
        self.next
    }

    /// Returns whether the last packet was produced.
    pub const fn is_over(&self) -> bool {
        self.next >= self.end
    }
}

impl Iterator for Schedule {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        if self.is_over() {
            return None;
        }
        let index = self.next;
        if index > 0 && self.count.restart_at == Some(index) {
            self.sequence = 0;
            self.breaks += 1;
        }
        if let Some(jump) = self.count.jump.filter(|jump| index > 0 && jump.at == index) {
            self.sequence = self.sequence.wrapping_add(jump.by);
            self.breaks += 1;
        }
        let sequence = self.sequence;
        self.next += 1;
        self.sequence = sequence.wrapping_add(1);
        Some(Packet {
            index,
            sequence,
            breaks: self.breaks,
            disposition: self.generator.next(sequence),
        })
    }
}

/// The state in which a packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The packet is undamaged.
    Intact,
    /// The sequence number is unreadable.
    BadHeader,
    /// The payload is damaged.
    BadPayload,
}

/// A packet that reaches the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The packet.
    pub packet: Packet,
    /// The state in which the packet arrives.
    pub state: State,
}

/// The packets that reach the window, in order.
#[derive(Clone, Debug)]
pub struct Arrivals {
    schedule: Schedule,
    packets_per_frame: u64,
    window: u64,
    reorder_by: u64,
    /// Delayed packets, oldest first; never exceeds its initial capacity.
    delayed: Vec<Packet>,
    /// Arrivals of the current step.
    ready: VecDeque<Arrival>,
    /// The highest frame number since the last jump or restart.
    front: u64,
    breaks: u32,
    /// Whether the schedule has ended and all delayed packets are ready.
    is_over: bool,
}

impl Arrivals {
    /// Creates the arrivals of `schedule` at a window of `window` frames of `packets_per_frame` packets. Reordered
    /// packets are delayed by `reorder_by` packets.
    pub fn new(schedule: Schedule, packets_per_frame: u32, window: usize, reorder_by: u64) -> Self {
        let (packets_per_frame, window) = (u64::from(packets_per_frame), window as u64);
        // Late packets wait for at most `window + 1` frames unless whole frames are missing.
        let max =
            usize::try_from((window + 2) * packets_per_frame + reorder_by).unwrap_or(usize::MAX);
        Self {
            schedule,
            packets_per_frame,
            window,
            reorder_by,
            delayed: Vec::with_capacity(max),
            ready: VecDeque::with_capacity(max + 4),
            front: 0,
            breaks: 0,
            is_over: false,
        }
    }

    /// Returns the number of packets that the sender has produced so far.
    pub const fn produced(&self) -> u64 {
        self.schedule.produced()
    }

    /// Returns whether all packets have arrived.
    pub fn is_over(&self) -> bool {
        self.is_over && self.ready.is_empty()
    }

    /// Returns the next arrival unless the sender has already produced `due` packets.
    pub fn next_within(&mut self, due: u64) -> Option<Arrival> {
        loop {
            if let Some(arrival) = self.ready.pop_front() {
                return Some(arrival);
            }
            if self.is_over || (self.produced() >= due && !self.schedule.is_over()) {
                return None;
            }
            self.step();
        }
    }

    /// Returns the capacities of the lists of delayed and ready packets.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> (usize, usize) {
        (self.delayed.capacity(), self.ready.capacity())
    }

    fn arrive(&mut self, packet: Packet, state: State) {
        if state != State::BadHeader {
            self.front = self.front.max(packet.sequence / self.packets_per_frame);
        }
        self.ready.push_back(Arrival { packet, state });
    }

    /// Delivers all delayed packets.
    fn release_all(&mut self) {
        for i in 0..self.delayed.len() {
            self.arrive(self.delayed[i], State::Intact);
        }
        self.delayed.clear();
    }

    fn step(&mut self) {
        let Some(packet) = self.schedule.next() else {
            self.release_all();
            self.is_over = true;
            return;
        };
        if packet.breaks != self.breaks {
            self.breaks = packet.breaks;
            self.release_all();
            self.front = 0;
        }
        match packet.disposition {
            Disposition::Sent => self.arrive(packet, State::Intact),
            Disposition::Lost => {}
            Disposition::BadHeader => self.arrive(packet, State::BadHeader),
            Disposition::BadPayload => self.arrive(packet, State::BadPayload),
            Disposition::Duplicated => {
                self.arrive(packet, State::Intact);
                self.arrive(packet, State::Intact);
            }
            Disposition::Late | Disposition::Reordered => {
                if self.delayed.len() == self.delayed.capacity() {
                    let oldest = self.delayed.remove(0);
                    self.arrive(oldest, State::Intact);
                }
                self.delayed.push(packet);
            }
        }
        self.release(packet.index);
    }

    /// Delivers the delayed packets that are due.
    fn release(&mut self, index: u64) {
        // A packet that arrives may make another one due, which must follow immediately.
        loop {
            let before = self.delayed.len();
            self.release_once(index);
            if self.delayed.len() == before || self.delayed.is_empty() {
                return;
            }
        }
    }

    fn release_once(&mut self, index: u64) {
        let mut kept = 0;
        for i in 0..self.delayed.len() {
            let packet = self.delayed[i];
            let due = match packet.disposition {
                Disposition::Late => {
                    packet.sequence / self.packets_per_frame + self.window <= self.front
                }
                _ => packet.index + self.reorder_by <= index,
            };
            if due {
                self.arrive(packet, State::Intact);
            } else {
                self.delayed[kept] = packet;
                kept += 1;
            }
        }
        self.delayed.truncate(kept);
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.next_within(u64::MAX)
    }
}
