//! The kernel that stays: what daq.cuh makes of a function of the user's where `dispatch` is "persistent"; here one that
//! gives each frame as it is, as far as the output has room, and zeros behind it.
//!
//! Its blocks take turns at random, so that teams and blocks overtake each other. It looks closer than a GPU does:
//! whatever would go wrong there without a word is told on stderr and breaks the context.

use crate::code::{ASSERT, Result};
use crate::faults::{Fate, RESIDENT};
use crate::kernels::{Memory, give};

/// Bits of the bell: frames posted so far.
const POSTED: u64 = (1 << 48) - 1;
/// Bit of the bell: whether to stop.
const STOP: u64 = 1 << 63;
/// Where the shifts lie, in bytes behind the bell.
const SHIFTS: u64 = 64;
/// Where the base of a device's count lies behind it.
const RUNG_BASE: u64 = 64;
/// Bits of that count.
const RUNG: u64 = 0xff_ffff;
/// Words of a record before its bitmap.
const RECORD_WORDS: u64 = 5;

/// One of the two rings.
#[derive(Clone, Copy, Debug)]
struct Slots {
    base: u64,
    stride: u64,
    count: u64,
    /// Bytes of a frame.
    bytes: u64,
    /// From the number of a frame to that of its slot.
    shift: u64,
}

impl Slots {
    fn at(&self, frame: u64) -> u64 {
        let slot = frame.wrapping_add(self.shift) % self.count;
        self.base.wrapping_add(slot.wrapping_mul(self.stride))
    }
}

/// A block, one of a team.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Frames of its team that it is done with.
    done: u64,
    /// As many as its credit says.
    reported: u64,
}

/// The kernel while it runs.
struct Resident<'a> {
    memory: &'a dyn Memory,
    bell: u64,
    /// What a device rings; 0 where the host alone does.
    rung: u64,
    credits: u64,
    records: [u64; 3],
    input: Slots,
    output: Slots,
    teams: u64,
    /// Block b of team t is number t × blocks of a team + b.
    blocks: Vec<Block>,
    /// Frames of each team that were begun, and whether the last of them never ends.
    begun: Vec<(u64, bool)>,
    /// The bell as it was last seen.
    seen: u64,
    /// Frames that the host has posted or a device has rung for.
    posted: u64,
    generation: Option<u64>,
    random: u64,
}

/// Runs until it is stopped or its context is broken.
pub fn run(memory: &dyn Memory, values: &[u64], grid: [u32; 3]) -> Result {
    Resident::new(memory, values, grid)?.run()
}

fn wrong(what: &str) -> Result {
    eprintln!("DAQ_SIMULATED_CUDA: daq_resident: {what}");
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
        let (blocks, teams) = (grid[0] as usize, grid[1] as usize);
        let resident = Self {
            memory,
            bell: values[0],
            rung: values[1],
            credits: values[2],
            records: [values[9], values[10], values[11]],
            input: ring(3, 12),
            output: ring(6, 15),
            teams: teams as u64,
            blocks: vec![Block::default(); blocks * teams],
            begun: vec![(0, false); teams],
            seen: 0,
            posted: 0,
            generation: None,
            random: values[0] ^ 0x9e37_79b9_7f4a_7c15,
        };
        for (name, slots) in [("input", resident.input), ("output", resident.output)] {
            if slots.count == 0 || slots.bytes > slots.stride {
                wrong(&format!(
                    "{name}: {} slots of {} bytes cannot hold frames of {}",
                    slots.count, slots.stride, slots.bytes
                ))?;
            }
        }
        let [_, words, count] = resident.records;
        if words < RECORD_WORDS || !count.is_power_of_two() {
            wrong(&format!("{count} records of {words} words"))?;
        }
        if grid[2] != 1 {
            wrong(&format!("a grid of {grid:?} blocks"))?;
        }
        for word in 0..resident.blocks.len() {
            resident.memory.load(resident.credit(word))?;
        }
        Ok(resident)
    }

    fn run(mut self) -> Result {
        loop {
            self.memory.check()?;
            let posted = self.look()?;
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
            // With more to do already, one word for several frames will do.
            if self.below(3) == 0 {
                self.settle(block)?;
            }
        }
    }

    /// Looks at the bell; how many frames are posted.
    fn look(&mut self) -> Result<u64> {
        let bell = self.memory.load(self.bell)?;
        let (before, posted) = (self.seen & POSTED, bell & POSTED);
        if self.seen & STOP != 0 && bell != self.seen {
            wrong(&format!(
                "the bell was rung after the stop: {:#x}, {bell:#x}",
                self.seen
            ))?;
        }
        if posted < before {
            wrong(&format!("of {before} frames posted {posted} are left"))?;
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
                "{posted} frames are posted where {free} are done and {room} have room: what is in use is overwritten"
            ))?;
        }
        self.seen = bell;
        // The shifts are read when there is a frame that needs them.
        if posted > before && self.generation != Some(generation(bell)) {
            if self.generation.is_some() && self.done() < before {
                wrong(&format!(
                    "the shifts change with frame {before} or later, and {} are done",
                    self.done()
                ))?;
            }
            self.generation = Some(generation(bell));
            self.input.shift = self.memory.load(self.bell + SHIFTS)?;
            self.output.shift = self.memory.load(self.bell + SHIFTS + 8)?;
        }
        Ok(posted)
    }

    /// How many frames a device has rung for beyond those that are posted.
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

    /// How many of the first frames are done by all of their blocks.
    fn done(&self) -> u64 {
        self.prefix(|block| block.done)
    }

    /// How many of them the host knows to be done.
    fn reported(&self) -> u64 {
        self.prefix(|block| block.reported)
    }

    fn prefix(&self, count: impl Fn(&Block) -> u64) -> u64 {
        let blocks = self.blocks.len() / self.begun.len();
        self.blocks
            .iter()
            .enumerate()
            .map(|(n, block)| count(block) * self.teams + (n / blocks) as u64)
            .min()
            .unwrap_or(0)
    }

    /// The team of a block and the frame that it would take next.
    fn next(&self, block: usize) -> (usize, u64) {
        let team = block / (self.blocks.len() / self.begun.len());
        (team, self.blocks[block].done * self.teams + team as u64)
    }

    /// A block that has a frame to work on.
    fn choose(&mut self, posted: u64) -> Option<usize> {
        let count = self.blocks.len();
        let first = usize::try_from(self.below(count as u64)).unwrap_or(0);
        (first..count).chain(0..first).find(|block| {
            let (team, frame) = self.next(*block);
            let (begun, hangs) = self.begun[team];
            let is_stuck = hangs && self.blocks[*block].done + 1 == begun;
            frame < posted && !is_stuck
        })
    }

    /// A block does its part of a frame.
    fn turn(&mut self, block: usize) -> Result {
        let (team, frame) = self.next(block);
        if self.blocks[block].done == self.begun[team].0 {
            self.begun[team].0 += 1;
            let [base, words, count] = self.records;
            let record = base.wrapping_add((frame % count).wrapping_mul(words * 8));
            self.memory.load(record)?;
            self.memory.load(record.wrapping_add((words - 1) * 8))?;
            match RESIDENT.begin() {
                Fate::Done => {}
                Fate::Fails(code) => return Err(code),
                Fate::Hangs => {
                    self.begun[team].1 = true;
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

    /// Tells the host what a block has done, if it does not know.
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

    /// A number below `end` (xorshift).
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }
}
