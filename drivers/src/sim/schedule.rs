//! Which packets there are, with which numbers, and in which order they arrive.
//!
//! [`Schedule`] is what the sender makes: a packet after the other, each with its number and its [`Fate`].
//! [`Arrivals`] is what reaches the window. In each step of the schedule
//!
//! 1. the packet itself arrives: once, twice, damaged or not now;
//! 2. then, oldest first, those that were held back and whose time has come, until none is: a reordered one when
//!    `reorder_by` more packets were made, a late one when a packet at least `window` frames further on has
//!    arrived with a readable number.
//!
//! Where the count breaks (`restart_at`, `jump`) and at the end, everything held back arrives before.
//! Both are pure: they depend on nothing but their configuration, so a test can say what a ledger must hold.

use super::faults::{Dice, Fate, Faults};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::VecDeque;

/// A jump of the sender's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jump {
    /// Packets before the jump.
    pub at: u64,
    /// Sequence numbers that are left out.
    pub by: u64,
}

/// How the sender counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The first packet's number.
    pub start: u64,
    /// Packets after which the count begins anew at 0.
    pub restart_at: Option<u64>,
    /// A jump.
    pub jump: Option<Jump>,
}

/// A packet as the sender makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// How many were made before it in this run.
    pub index: u64,
    /// Its number, before it is cut to the bits that a packet carries.
    pub sequence: u64,
    /// How often the count has broken before it.
    pub breaks: u32,
    /// What becomes of it.
    pub fate: Fate,
}

/// The packets that a sender makes, in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    count: Count,
    dice: Dice,
    next: u64,
    end: u64,
    sequence: u64,
    breaks: u32,
}

impl Schedule {
    /// `packets` packets (`None` for ever) counted as `count` says, with `faults`.
    pub fn new(count: Count, faults: &Faults, packets: Option<u64>) -> Self {
        let end = packets.unwrap_or(u64::MAX);
        Self {
            count,
            dice: faults.dice(),
            next: 0,
            end,
            sequence: count.start,
            breaks: 0,
        }
    }

    /// Packets made so far.
    pub const fn made(&self) -> u64 {
        self.next
    }

    /// Whether the last packet was made.
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
            fate: self.dice.roll(sequence),
        })
    }
}

/// In what state a packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Whole.
    Whole,
    /// Its sequence number cannot be read.
    BadHeader,
    /// Its payload is damaged.
    BadPayload,
}

/// One packet that reaches the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The packet.
    pub packet: Packet,
    /// Its state.
    pub state: State,
}

/// What reaches the window, in order.
#[derive(Clone, Debug)]
pub struct Arrivals {
    schedule: Schedule,
    places: u64,
    window: u64,
    reorder_by: u64,
    /// Packets held back, oldest first; never grows beyond its first capacity.
    held: Vec<Packet>,
    /// Arrivals of the present step.
    ready: VecDeque<Arrival>,
    /// The highest frame seen since the count broke.
    front: u64,
    breaks: u32,
    /// Whether the schedule has ended and everything held back is ready.
    is_over: bool,
}

impl Arrivals {
    /// What arrives of `schedule` at a window of `window` frames of `places` places, where reordered packets
    /// come `reorder_by` packets late.
    pub fn new(schedule: Schedule, places: u32, window: usize, reorder_by: u64) -> Self {
        let (places, window) = (u64::from(places), window as u64);
        // Late packets wait for at most `window + 1` frames unless whole frames are missing.
        let most = usize::try_from((window + 2) * places + reorder_by).unwrap_or(usize::MAX);
        Self {
            schedule,
            places,
            window,
            reorder_by,
            held: Vec::with_capacity(most),
            ready: VecDeque::with_capacity(most + 4),
            front: 0,
            breaks: 0,
            is_over: false,
        }
    }

    /// Packets that the sender has made so far.
    pub const fn made(&self) -> u64 {
        self.schedule.made()
    }

    /// Whether everything has arrived.
    pub fn is_over(&self) -> bool {
        self.is_over && self.ready.is_empty()
    }

    /// The next arrival, if it comes before more than `due` packets are made.
    pub fn next_within(&mut self, due: u64) -> Option<Arrival> {
        loop {
            if let Some(arrival) = self.ready.pop_front() {
                return Some(arrival);
            }
            if self.is_over || (self.made() >= due && !self.schedule.is_over()) {
                return None;
            }
            self.step();
        }
    }

    /// What the lists of packets held back and ready have room for.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> (usize, usize) {
        (self.held.capacity(), self.ready.capacity())
    }

    fn arrive(&mut self, packet: Packet, state: State) {
        if state != State::BadHeader {
            self.front = self.front.max(packet.sequence / self.places);
        }
        self.ready.push_back(Arrival { packet, state });
    }

    /// Everything held back arrives.
    fn release_all(&mut self) {
        for i in 0..self.held.len() {
            self.arrive(self.held[i], State::Whole);
        }
        self.held.clear();
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
        match packet.fate {
            Fate::Sent => self.arrive(packet, State::Whole),
            Fate::Lost => {}
            Fate::BadHeader => self.arrive(packet, State::BadHeader),
            Fate::BadPayload => self.arrive(packet, State::BadPayload),
            Fate::Twice => {
                self.arrive(packet, State::Whole);
                self.arrive(packet, State::Whole);
            }
            Fate::Late | Fate::Reordered => {
                if self.held.len() == self.held.capacity() {
                    let oldest = self.held.remove(0);
                    self.arrive(oldest, State::Whole);
                }
                self.held.push(packet);
            }
        }
        self.release(packet.index);
    }

    /// Those whose time has come arrive.
    fn release(&mut self, index: u64) {
        // One that arrives may be what another waits for, which must follow at once.
        loop {
            let before = self.held.len();
            self.release_once(index);
            if self.held.len() == before || self.held.is_empty() {
                return;
            }
        }
    }

    fn release_once(&mut self, index: u64) {
        let mut kept = 0;
        for i in 0..self.held.len() {
            let packet = self.held[i];
            let due = match packet.fate {
                Fate::Late => packet.sequence / self.places + self.window <= self.front,
                _ => packet.index + self.reorder_by <= index,
            };
            if due {
                self.arrive(packet, State::Whole);
            } else {
                self.held[kept] = packet;
                kept += 1;
            }
        }
        self.held.truncate(kept);
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.next_within(u64::MAX)
    }
}
