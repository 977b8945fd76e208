//! The writer's descriptor table: a FIFO that software fills. In loop mode the table refills itself.

/// Maximum number of descriptors in the table.
pub(super) const DEPTH: usize = 256;

/// A descriptor of one transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Destination address; the design supports only 32 bits.
    pub address: u32,
    /// Number of bytes, 24 bits.
    pub length: u32,
    /// True: no interrupt is raised at the end of the transfer.
    pub is_silent: bool,
    /// True: the descriptor was added to an empty table, so a loop starts with this descriptor.
    is_first: bool,
}

/// The table and the state of its loops.
#[derive(Debug)]
pub(super) struct Table {
    /// A memory with two pointers, because the output shows the entry at the read pointer even when the table is empty.
    memory: [Descriptor; DEPTH],
    produced: usize,
    consumed: usize,
    level: usize,
    /// Loop mode: descriptors are added again after they were used.
    loops: bool,
    /// True: no loop has started since the last reset.
    is_fresh: bool,
    index: u16,
    count: u16,
}

impl Table {
    /// Creates a table in its state after power-on. Only a reset sets `is_fresh`, so without a reset the first loop is
    /// counted too.
    pub(super) const fn new() -> Self {
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

    /// Adds a descriptor from the register words `value` and `address`. No effect in loop mode or if the table is full.
    pub(super) fn push(&mut self, value: u32, address: u32) {
        if !self.loops {
            self.produce(Descriptor {
                address,
                length: value & 0xff_ffff,
                is_silent: value >> 24 & 1 != 0,
                is_first: self.level == 0,
            });
        }
    }

    /// Returns the next descriptor.
    pub(super) fn next(&self) -> Option<Descriptor> {
        (self.level > 0).then(|| self.shown())
    }

    /// Returns the table's output: the next descriptor, or a stale entry if the table is empty.
    pub(super) const fn shown(&self) -> Descriptor {
        self.memory[self.consumed]
    }

    /// Removes the next descriptor, which was completed. In loop mode, the descriptor is added again.
    pub(super) fn pop(&mut self) {
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
            // The first loop has number 0. The index of the last descriptor is also 0 before any was completed.
            self.count = self.count.wrapping_add(u16::from(!self.is_fresh));
            self.is_fresh = false;
        } else {
            self.count = self.count.wrapping_add(u16::from(self.index == u16::MAX));
            self.index = self.index.wrapping_add(1);
        }
    }

    /// Empties the table and resets the loop count.
    pub(super) fn reset(&mut self) {
        (self.produced, self.consumed, self.level) = (0, 0, 0);
        (self.index, self.count) = (0, 0);
        self.is_fresh = true;
    }

    /// Enables or disables loop mode.
    pub(super) fn set_loops(&mut self, loops: bool) {
        self.loops = loops;
    }

    /// Returns true if loop mode is enabled.
    pub(super) const fn loops(&self) -> bool {
        self.loops
    }

    /// Returns the number of descriptors in the table, including the current descriptor.
    pub(super) const fn level(&self) -> usize {
        self.level
    }

    /// Returns the loop count in the high half and the index of the last completed descriptor in the low half.
    pub(super) fn status(&self) -> u32 {
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
