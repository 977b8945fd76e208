//! The persistent kernel that daq.cuh generates from a user's function if `dispatch` is "persistent". This replacement
//! copies each frame unchanged, up to the size of the output, and fills the rest of the output with zeros.
//!
//! The blocks run in random order, so that groups and blocks overtake each other. The simulation is stricter than a
//! GPU: a protocol violation that a GPU would ignore is logged to stderr and breaks the context.

use crate::code::{ASSERT, Result};
use crate::faults::{Outcome, PERSISTENT};
use crate::kernels::{Memory, give};

/// Bits of the doorbell: number of frames submitted so far.
const POSTED: u64 = (1 << 48) - 1;
/// Bit of the doorbell: stop.
const STOP: u64 = 1 << 63;
/// Distance in bytes from the doorbell to the shifts.
const SHIFTS: u64 = 64;
/// Distance in bytes from the word in which a device counts its transfers to the word with the frame number at which
/// this count started.
const RUNG_BASE: u64 = 64;
/// Mask of the device's count of transfers.
const RUNG: u64 = 0xff_ffff;
/// Number of words of a record before its bitmap.
const RECORD_WORDS: u64 = 5;

/// An input or output ring.
#[derive(Clone, Copy, Debug)]
struct Slots {
    base: u64,
    stride: u64,
    count: u64,
    /// Size of a frame in bytes.
    bytes: u64,
    /// Offset from a frame number to its slot number.
    shift: u64,
}

impl Slots {
    fn at(&self, frame: u64) -> u64 {
        let slot = frame.wrapping_add(self.shift) % self.count;
        self.base.wrapping_add(slot.wrapping_mul(self.stride))
    }
}

/// The progress of a block of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Number of frames of its group that the block has completed.
    done: u64,
    /// Number of completed frames that the block has published in its credit.
    reported: u64,
}

/// The running persistent kernel.
struct Resident<'a> {
    memory: &'a dyn Memory,
    bell: u64,
    /// Address of the doorbell that a device writes; 0 if only the host submits frames.
    rung: u64,
    credits: u64,
    records: [u64; 3],
    input: Slots,
    output: Slots,
    groups: u64,
    /// The blocks. Block b of group t has the index t × blocks per group + b.
    blocks: Vec<Block>,
    /// For each group, the number of started frames, and whether the last of them hangs.
    begun: Vec<(u64, bool)>,
    /// The value of the doorbell at the last read.
    seen: u64,
    /// Number of frames that the host has submitted or a device has signalled.
    posted: u64,
    generation: Option<u64>,
    random: u64,
}

/// Runs until the kernel is stopped or its context is broken.
pub fn run(memory: &dyn Memory, values: &[u64], grid: [u32; 3]) -> Result {
    Resident::new(memory, values, grid)?.run()
}

fn wrong(what: &str) -> Result {
    eprintln!("DAQ_SIMULATED_CUDA: daq_persistent: {what}");
    Err(ASSERT)
}

fn generation(bell: u64) -> u64 {
    (bell & !STOP) >> 48
}

impl<'a> Resident<'a> {
    fn new(memory: &'a dyn Memory, values: &[u64], grid: [u32; 3]) -> Result<Self> {
        let ring = |at: usize, bytes: usize| Slots {
            base: values[at],
            stride: values[at + 1],
            count: values[at + 2],
            bytes: values[bytes],
            shift: 0,
        };
        let (blocks, groups) = (grid[0] as usize, grid[1] as usize);
        let persistent = Self {
            memory,
            bell: values[0],
            rung: values[1],
            credits: values[2],
            records: [values[9], values[10], values[11]],
            input: ring(3, 12),
            output: ring(6, 15),
            groups: groups as u64,
            blocks: vec![Block::default(); blocks * groups],
            begun: vec![(0, false); groups],
            seen: 0,
            posted: 0,
            generation: None,
            random: values[0] ^ 0x9e37_79b9_7f4a_7c15,
        };
        for (name, slots) in [("input", persistent.input), ("output", persistent.output)] {
            if slots.count == 0 || slots.bytes > slots.stride {
                wrong(&format!(
                    "{name}: {} slots of {} bytes cannot hold frames of {} bytes",
                    slots.count, slots.stride, slots.bytes
                ))?;
            }
        }
        let [_, words, count] = persistent.records;
        if words < RECORD_WORDS || !count.is_power_of_two() {
            wrong(&format!(
                "{count} records of {words} words are invalid: the count must be a power of two, and a record must have at least {RECORD_WORDS} words"
            ))?;
        }
        if grid[2] != 1 {
            wrong(&format!(
                "the grid {grid:?} is invalid: its third dimension must be 1"
            ))?;
        }
        for word in 0..persistent.blocks.len() {
            persistent.memory.load(persistent.credit(word))?;
        }
        Ok(persistent)
    }

    fn run(mut self) -> Result {
        loop {
            self.memory.check()?;
            let posted = self.read_progress()?;
            let Some(block) = self.choose(posted) else {
                for block in 0..self.blocks.len() {
                    self.settle(block)?;
                }
                if self.seen & STOP != 0 {
                    let hangs = self.begun.iter().any(|(_, hangs)| *hangs);
                    if !hangs {
                        return Ok(());
                    }
                }
                self.memory.rest();
                continue;
            };
            self.turn(block)?;
            // Publishing is sometimes delayed, so that one credit word covers several frames.
            if self.below(3) == 0 {
                self.settle(block)?;
            }
        }
    }

    /// Reads the doorbell and returns the number of submitted frames.
    fn read_progress(&mut self) -> Result<u64> {
        let bell = self.memory.load(self.bell)?;
        let (before, posted) = (self.seen & POSTED, bell & POSTED);
        if self.seen & STOP != 0 && bell != self.seen {
            wrong(&format!(
                "the doorbell was rung after the stop: it changed from {:#x} to {bell:#x}",
                self.seen
            ))?;
        }
        if posted < before {
            wrong(&format!(
                "the number of submitted frames decreased from {before} to {posted}"
            ))?;
        }
        self.posted = self.posted.max(posted);
        if let Some(ahead) = self.rung_ahead()? {
            self.posted += ahead;
        }
        let posted = self.posted;
        let free = self.reported();
        let room = self.input.count.min(self.output.count).min(self.records[2]);
        if posted > free + room {
            wrong(&format!(
                "{posted} frames are submitted, but only {free} are done and there are {room} slots: frames in use are overwritten"
            ))?;
        }
        self.seen = bell;
        // Reads the shifts only if new frames were submitted with a new generation of the shifts.
        if posted > before && self.generation != Some(generation(bell)) {
            if self.generation.is_some() && self.done() < before {
                wrong(&format!(
                    "the shifts change with frame {before} or later, but only {} frames are done",
                    self.done()
                ))?;
            }
            self.generation = Some(generation(bell));
            self.input.shift = self.memory.load(self.bell + SHIFTS)?;
            self.output.shift = self.memory.load(self.bell + SHIFTS + 8)?;
        }
        Ok(posted)
    }

    /// Returns the number of frames that a device has signalled in addition to the submitted frames.
    fn rung_ahead(&self) -> Result<Option<u64>> {
        if self.rung == 0 {
            return Ok(None);
        }
        let base = self.memory.load(self.rung + RUNG_BASE)?;
        if base == u64::MAX {
            return Ok(None);
        }
        let count = self.memory.load(self.rung)?;
        let ahead = count.wrapping_sub(self.posted.wrapping_sub(base)) & RUNG;
        Ok(Some(ahead).filter(|ahead| *ahead <= self.input.count && self.seen & STOP == 0))
    }

    /// Returns the number of consecutive frames, from the first, that all of their blocks have completed.
    fn done(&self) -> u64 {
        self.prefix(|block| block.done)
    }

    /// Returns the number of consecutive frames, from the first, that are published as complete to the host.
    fn reported(&self) -> u64 {
        self.prefix(|block| block.reported)
    }

    fn prefix(&self, count: impl Fn(&Block) -> u64) -> u64 {
        let blocks = self.blocks.len() / self.begun.len();
        self.blocks
            .iter()
            .enumerate()
            .map(|(n, block)| count(block) * self.groups + (n / blocks) as u64)
            .min()
            .unwrap_or(0)
    }

    /// Returns the group of a block and the frame that it would start next.
    fn next(&self, block: usize) -> (usize, u64) {
        let group = block / (self.blocks.len() / self.begun.len());
        (group, self.blocks[block].done * self.groups + group as u64)
    }

    /// Returns a block that has a frame to process.
    fn choose(&mut self, posted: u64) -> Option<usize> {
        let count = self.blocks.len();
        let first = usize::try_from(self.below(count as u64)).unwrap_or(0);
        (first..count).chain(0..first).find(|block| {
            let (group, frame) = self.next(*block);
            let (begun, hangs) = self.begun[group];
            let is_stuck = hangs && self.blocks[*block].done + 1 == begun;
            frame < posted && !is_stuck
        })
    }

    /// Processes a block's part of a frame.
    fn turn(&mut self, block: usize) -> Result {
        let (group, frame) = self.next(block);
        if self.blocks[block].done == self.begun[group].0 {
            self.begun[group].0 += 1;
            let [base, words, count] = self.records;
            let record = base.wrapping_add((frame % count).wrapping_mul(words * 8));
            self.memory.load(record)?;
            self.memory.load(record.wrapping_add((words - 1) * 8))?;
            match PERSISTENT.begin() {
                Outcome::Done | Outcome::Corrupts => {}
                Outcome::Fails(code) => return Err(code),
                Outcome::Hangs => {
                    self.begun[group].1 = true;
                    return Ok(());
                }
            }
        }
        let blocks = (self.blocks.len() / self.begun.len()) as u64;
        let part = self.output.bytes.div_ceil(blocks);
        let from = (block as u64 % blocks * part).min(self.output.bytes);
        let to = (from + part).min(self.output.bytes);
        give(
            self.memory,
            self.output.at(frame),
            (self.input.at(frame), self.input.bytes),
            from..to,
        )?;
        self.blocks[block].done += 1;
        Ok(())
    }

    /// Publishes the progress of a block to the host, if it is not published yet.
    fn settle(&mut self, block: usize) -> Result {
        let Block { done, reported } = self.blocks[block];
        if reported < done {
            self.tell(block, done)?;
            self.blocks[block].reported = done;
        }
        Ok(())
    }

    fn tell(&self, word: usize, value: u64) -> Result {
        self.memory.store(self.credit(word), value)
    }

    const fn credit(&self, word: usize) -> u64 {
        self.credits.wrapping_add(8 * word as u64)
    }

    /// Returns a number below `end` (xorshift).
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }
}
