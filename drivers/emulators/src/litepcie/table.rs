//! The writer's table of descriptors: a FIFO that software fills, and that in loop mode fills itself.

/// Descriptors that it holds.
pub const DEPTH: usize = 256;

/// One transfer's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Where the transfer goes: 32 bits, as the design has no more.
    pub address: u32,
    /// Bytes: 24 bits.
    pub length: u32,
    /// Its end raises no interrupt.
    pub is_silent: bool,
    /// It was put into an empty table: a round begins with it.
    is_first: bool,
}

/// The table and the state of its rounds.
#[derive(Debug)]
pub struct Table {
    /// As a memory with two pointers, because the output shows what is under the one even when the table is empty.
    memory: [Descriptor; DEPTH],
    produced: usize,
    consumed: usize,
    level: usize,
    /// What is consumed goes in again.
    loops: bool,
    /// No round has begun since a reset.
    is_fresh: bool,
    index: u16,
    count: u16,
}

impl Table {
    /// As after power-on. Only a reset of the table makes it fresh: without one the first round counts.
    pub const fn new() -> Self {
        Self {
            memory: [Descriptor {
                address: 0,
                length: 0,
                is_silent: false,
                is_first: false,
            }; DEPTH],
            produced: 0,
            consumed: 0,
            level: 0,
            loops: false,
            is_fresh: false,
            index: 0,
            count: 0,
        }
    }

    /// Puts in a descriptor, by the words `value` and `address` of the registers; without effect in loop mode and on a
    /// full table.
    pub fn push(&mut self, value: u32, address: u32) {
        if !self.loops {
            self.produce(Descriptor {
                address,
                length: value & 0xff_ffff,
                is_silent: value >> 24 & 1 != 0,
                is_first: self.level == 0,
            });
        }
    }

    /// The next descriptor.
    pub fn next(&self) -> Option<Descriptor> {
        (self.level > 0).then(|| self.shown())
    }

    /// What the output shows: the next descriptor, or what was once where the next will be.
    pub const fn shown(&self) -> Descriptor {
        self.memory[self.consumed]
    }

    /// The next descriptor is done with.
    pub fn pop(&mut self) {
        let Some(done) = self.next() else {
            return;
        };
        self.consumed = (self.consumed + 1) % DEPTH;
        self.level -= 1;
        if self.loops {
            self.produce(done);
        }
        if self.loops && done.is_first {
            self.index = 0;
            // The first round is number 0, as is the last descriptor's index before anything was done.
            self.count = self.count.wrapping_add(u16::from(!self.is_fresh));
            self.is_fresh = false;
        } else {
            self.count = self.count.wrapping_add(u16::from(self.index == u16::MAX));
            self.index = self.index.wrapping_add(1);
        }
    }

    /// Empties it, and begins counting again.
    pub fn reset(&mut self) {
        (self.produced, self.consumed, self.level) = (0, 0, 0);
        (self.index, self.count) = (0, 0);
        self.is_fresh = true;
    }

    /// Switches loop mode on or off.
    pub fn set_loops(&mut self, loops: bool) {
        self.loops = loops;
    }

    /// Whether loop mode is on.
    pub const fn loops(&self) -> bool {
        self.loops
    }

    /// Descriptors in it, the one under way among them.
    pub const fn level(&self) -> usize {
        self.level
    }

    /// The rounds, and in the low half the last descriptor that was done.
    pub fn status(&self) -> u32 {
        u32::from(self.count) << 16 | u32::from(self.index)
    }

    fn produce(&mut self, descriptor: Descriptor) {
        if self.level < DEPTH {
            self.memory[self.produced] = descriptor;
            self.produced = (self.produced + 1) % DEPTH;
            self.level += 1;
        }
    }
}
