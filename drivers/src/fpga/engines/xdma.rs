//! XDMA: AMD's DMA core for PCI Express; one card-to-host stream channel.
//!
//! The descriptors of all slots form a cycle. With credits, the engine processes a descriptor only if it has a credit,
//! so the card waits for free slots. Without credits, the engine is free-running and overwrites slots.
//!
//! # Detection of finished transfers
//! The engine writes a result (length, end of packet) for each descriptor, and then its count to a given address.
//! With credits, only the results are read. A result is zeroed before its slot is credited again, so a nonzero result is
//! new. A result with length 0 may be half written, and is valid when it is read a second time. Without credits, the
//! engine may write a result at any time, so results cannot be zeroed; the count shows which results are valid.
//! Registers are read only after every `POLLS_PER_CHECK` empty polls and every `CHECK_INTERVAL`, to detect errors, a
//! removed card, and a channel that was stopped by a reset or by another program.
//!
//! # Counts
//! The count has 24 bits in memory and is zero when the engine starts. With credits, at most 1023 transfers are in
//! flight, so the count is never 2^23 ahead of the reported transfers. Without credits, the count would have to advance
//! by 2^23 between two polls. At 64 bytes or more per transfer, this is at least 512 MiB, which takes at least 1/8 s on
//! the fastest link. A larger step is treated as a count that went back, a fault that restarts the engine. If polls are
//! less frequent, all these frames are overwritten anyway, and multiples of 2^24 frames are not counted.

mod layout;
mod ring;
#[cfg(test)]
mod tests;

use crate::fpga::device::{Device, GONE, Interrupt, Registers, halves};
use crate::fpga::engines::{
    Count, FpgaEngine, IdleCheck, Opening, check_slots, now, too_few_slots, unfit, wait_until,
};
use crate::fpga::keys::{CompletionMode, FpgaConfig};
use crate::fpga::register_table::Window;
use daq_core::config::Problem;
use daq_core::dma::{
    ArmError, Caps, CompletionOrder, Completions, DmaDevice, Done, Engine, EngineError, EngineInfo,
    QuiesceTimeout, SlotLimits, Slots,
};
use layout::{
    ANY_ERROR, BUSY, C2H, C2H_SGDMA, CHANNEL, CHANNELS, COMMON, CONFIG, COUNT_BITS, COUNT_ERROR,
    CUT, DAMAGED, DESCRIPTOR_DONE, ERRORS, FAULTS, H2C, ID_C2H, ID_CONFIG, ID_H2C, ID_IRQ,
    ID_STREAM, IRQ, LENGTH_BITS, MAX_CREDITS, MISSING, RUN, SPACE, STOPPED, UNNAMED, WENT_BACK,
    WRITE_BACK, channel, common, irq, sgdma,
};
use ring::{Outcome, Ring};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of bytes per descriptor, rounded down to a multiple of the widest data path.
const MAX_TRANSFER: usize = (1 << LENGTH_BITS) - 64;
/// Number of slots after the last counted slot that the engine may be writing without credits: the slot in progress and
/// the next slot. The engine may write the first bytes of the next slot before it writes the count of the slot in progress.
const AHEAD: u64 = MIN_SLOTS as u64 - 1;
/// Minimum number of slots of a free-running engine.
const MIN_SLOTS: usize = 3;
/// Maximum delay of a result after its count.
const RESULT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout to stop an engine that was left running by another program.
const LEFT_RUNNING: Duration = Duration::from_millis(100);

/// The keys of the engine `xdma`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct XdmaKeys {
    /// True applies backpressure, so the card waits while no slot is free. False lets the card
    /// overwrite frames; frames that were not copied in time are counted as `overrun`. Default: true for `xdma`, false
    /// for `external`.
    pub credits: Option<bool>,
}

/// Finds the BAR that contains the core's identifiers. Returns its number and its registers.
fn find(device: &dyn Device) -> Option<(usize, Arc<dyn Registers>)> {
    (0..6).find_map(|bar| {
        let registers = device.registers(bar).ok()?;
        let is_here = registers.bytes() >= SPACE
            && registers.read(IRQ) >> 16 == ID_IRQ
            && registers.read(CONFIG) >> 16 == ID_CONFIG;
        is_here.then_some((bar, registers))
    })
}

/// Returns the number of host-to-card channels. The interrupt bits of these channels precede the interrupt bits of the
/// card-to-host channels.
fn channels_to_card(registers: &dyn Registers) -> usize {
    (0..CHANNELS)
        .take_while(|n| registers.read(H2C + CHANNEL * *n as u64) >> 16 == ID_H2C)
        .count()
}

/// A channel's interrupt.
struct ChannelInterrupt {
    interrupt: Interrupt,
    /// The channel's bit in the interrupt block.
    bit: u32,
}

/// A card-to-host channel.
pub struct Xdma {
    device: Arc<dyn DmaDevice>,
    channel: Window,
    sgdma: Window,
    common: Window,
    irq: Window,
    /// Number of the channel.
    number: u64,
    /// The channel's bit in the registers for all channels.
    bit: u32,
    has_credits: bool,
    alignment: usize,
    address_bits: u32,
    signal: Option<ChannelInterrupt>,
    /// The ring of the last start. It is kept after the stop for completions that were not polled yet.
    ring: Option<Ring>,
    first: usize,
    slot_bytes: usize,
    /// True if the count is written to the ring, false if it is written to a doorbell.
    counts_in_ring: bool,
    /// Total number of credits since the start.
    credited: u64,
    /// Number of transfers that were reported or skipped.
    reported: u64,
    count: Count,
    /// When the registers of the idle channel are checked.
    idle: IdleCheck,
    /// The transfer whose result had a length of 0 when it was first read.
    empty: Option<u64>,
    /// The transfer that continues the packet of the previous transfer.
    continues: Option<u64>,
    /// Time at which a counted result was first found missing.
    missing_since: Option<Instant>,
    result_timeout: Duration,
    /// Error bits from status reads that cleared the register.
    errors: u32,
}

impl FpgaEngine for Xdma {
    const INFO: EngineInfo = EngineInfo {
        name: "xdma",
        summary: "AMD/Xilinx XDMA, a stream from card to host",
        limits: SlotLimits {
            // The widest data path that the core has.
            alignment: 64,
            max_slot: MAX_TRANSFER,
            max_slots: MAX_CREDITS,
            preferred: 1 << 20,
        },
        faults: FAULTS,
        supports_backpressure: true,
        order: CompletionOrder::AfterPayload,
    };

    type Keys = XdmaKeys;

    fn problems(config: &FpgaConfig, _: &XdmaKeys) -> Vec<Problem> {
        if config.channel < CHANNELS {
            return Vec::new();
        }
        let message = format!("XDMA has no channel {}", config.channel);
        vec![Problem::at("channel", message).help("use 0 to 3, the channels from card to host")]
    }

    fn supports_backpressure(keys: &XdmaKeys) -> bool {
        keys.credits.unwrap_or(Self::INFO.supports_backpressure)
    }

    fn min_slots(keys: &XdmaKeys) -> usize {
        if Self::supports_backpressure(keys) {
            1
        } else {
            MIN_SLOTS
        }
    }

    fn can_ring_doorbell(keys: &XdmaKeys) -> bool {
        Self::supports_backpressure(keys)
    }

    fn recognises(device: &dyn Device) -> bool {
        find(device).is_some()
    }

    fn open(opening: &Opening<XdmaKeys>) -> Result<Self, EngineError> {
        let (device, config) = (&opening.device, opening.config);
        let name = device.name();
        let Some((_, registers)) = find(&**device) else {
            return Err(unfit(name, not_found(&**device)));
        };
        let channel = config.channel as u64;
        let at = C2H + CHANNEL * channel;
        let window = |base| Window::new(&registers, base);
        let (c2h, common) = (window(at), window(COMMON));
        let id = c2h.read(channel::ID);
        if id == GONE {
            return Err(EngineError::Gone {
                device: name.to_owned(),
            });
        }
        if id >> 16 != ID_C2H || u64::from(id >> 8 & 0xf) != channel {
            return Err(unfit(
                name,
                format!(
                    "the register at {at:#x} reads {id:#010x}, expected {ID_C2H:#x}8{channel}.. for card-to-host channel {channel}: the core was built with fewer channels; lower `channel`"
                ),
            ));
        }
        if id & ID_STREAM == 0 {
            return Err(unfit(
                name,
                format!(
                    "channel {channel} is memory-mapped (identifier {id:#010x} at {at:#x}, bit 15 is not set), but daq needs a stream channel: build the core with \"AXI Stream\""
                ),
            ));
        }
        let alignments = c2h.read(channel::ALIGNMENTS);
        let bytes = |shift: u32| ((alignments >> shift & 0xff) as usize).next_power_of_two();
        let address_bits = match alignments & 0xff {
            bits @ 1..=64 => bits,
            _ => 64,
        };
        let bit = 1_u32 << (u64::from(common::C2H_BIT) + channel);
        let has_credits = Self::supports_backpressure(opening.keys);
        // The probe of the credit mode below would let an engine continue that was left running and waits for credits.
        let control = c2h.read(channel::CONTROL);
        if control & RUN != 0 || c2h.read(channel::STATUS) & BUSY != 0 {
            c2h.write(channel::CONTROL_CLEAR, RUN);
            idle(name, &c2h, channel)?;
        }
        if has_credits {
            let before = common.read(common::CREDIT_MODE);
            common.write(common::CREDIT_MODE_SET, bit);
            let modes = common.read(common::CREDIT_MODE);
            if before & bit == 0 {
                common.write(common::CREDIT_MODE_CLEAR, bit);
            }
            if modes & bit == 0 {
                let at = common.offset(common::CREDIT_MODE);
                return Err(unfit(
                    name,
                    format!(
                        "this core does not support credits (bit {bit:#x} of the register at {at:#x} stays 0): set `credits = false`; frames that the core overwrites are then counted as `overrun`"
                    ),
                ));
            }
        }
        let signal = match config.completion {
            CompletionMode::Poll => None,
            CompletionMode::Interrupt => {
                let interrupt = device.interrupts(1)?.swap_remove(0);
                let number = channels_to_card(&*registers) + config.channel;
                Some(ChannelInterrupt {
                    interrupt,
                    bit: u32::try_from(number).unwrap_or(0),
                })
            }
        };
        Ok(Self {
            sgdma: window(C2H_SGDMA + CHANNEL * channel),
            irq: window(IRQ),
            channel: c2h,
            common,
            number: channel,
            bit,
            has_credits,
            alignment: bytes(16).max(bytes(8)),
            address_bits,
            signal,
            ring: None,
            first: 0,
            slot_bytes: 0,
            counts_in_ring: true,
            credited: 0,
            reported: 0,
            count: Count::new(1 << COUNT_BITS),
            idle: IdleCheck::start(),
            empty: None,
            continues: None,
            missing_since: None,
            result_timeout: RESULT_TIMEOUT,
            errors: 0,
            device: device.clone().as_dma(),
        })
    }
}

impl Xdma {
    fn gone(&self) -> EngineError {
        EngineError::Gone {
            device: self.device.name().to_owned(),
        }
    }

    fn faulted(&self, faults: Vec<&'static str>) -> EngineError {
        EngineError::Faulted {
            device: self.device.name().to_owned(),
            engine: Self::INFO.name,
            faults,
        }
    }

    /// Returns the number of finished transfers for the count word `count`.
    fn finished(&self, count: u32) -> Result<u64, EngineError> {
        let finished = self.count.peek(u64::from(count & MASK));
        if finished - self.count.total() > u64::from(HALF) {
            return Err(self.faulted(vec![FAULTS[WENT_BACK]]));
        }
        Ok(finished)
    }

    /// Reports the transfers below `bound` that have results. Returns the number of reported transfers.
    fn collect(&mut self, bound: u64, done: &mut Completions) -> Result<usize, EngineError> {
        let Some(ring) = &self.ring else { return Ok(0) };
        let slots = ring.slots() as u64;
        let (mut found, mut timestamp) = (0, None);
        while self.reported < bound && done.room() > 0 {
            let slot = usize::try_from((self.first as u64 + self.reported) % slots).unwrap_or(0);
            let (length, is_end) = match ring.result(slot) {
                Outcome::None => break,
                // The length may not have arrived yet, so a length of 0 is accepted only at the second read.
                Outcome::Done(0, _) if self.empty.replace(self.reported) != Some(self.reported) => {
                    break;
                }
                Outcome::Done(length, is_end) if length as usize <= self.slot_bytes => {
                    (length as usize, is_end)
                }
                // Transfers that were found before are reported first.
                Outcome::Done(..) | Outcome::Damaged if found > 0 => break,
                Outcome::Done(..) | Outcome::Damaged => {
                    return Err(self.faulted(vec![FAULTS[DAMAGED]]));
                }
            };
            if self.has_credits {
                ring.clear_result(slot);
            }
            done.push(Done {
                length,
                is_bad: length == 0,
                timestamp: *timestamp.get_or_insert_with(now),
                ..Done::default()
            });
            // Reported at the end of the packet, because a stream without packets has no end.
            if is_end && self.continues == Some(self.reported) {
                done.fault(CUT);
            }
            self.reported += 1;
            self.continues = (!is_end).then_some(self.reported);
            found += 1;
        }
        Ok(found)
    }

    /// Reports the finished transfers. Returns the number of reported transfers.
    fn collect_finished(&mut self, done: &mut Completions) -> Result<usize, EngineError> {
        let Some(ring) = &self.ring else {
            return Ok(0);
        };
        let bound = if self.has_credits {
            self.credited
        } else {
            let count = ring.count();
            let finished = self.finished(count)?;
            self.count.advance(finished);
            let overwritten = (finished + AHEAD).saturating_sub(ring.slots() as u64);
            if self.reported < overwritten {
                done.skip(overwritten - self.reported);
                self.reported = overwritten;
            }
            finished
        };
        let found = self.collect(bound, done)?;
        if found > 0 {
            self.idle.restart();
            self.missing_since = None;
        }
        Ok(found)
    }

    /// Checks for errors after an empty poll.
    fn check_errors(&mut self) -> Result<(), EngineError> {
        let count = self
            .ring
            .as_ref()
            .filter(|_| self.counts_in_ring)
            .map_or(0, Ring::count);
        // The number of counted transfers beyond the reported ones. Results are written before the count.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the count has only these low bits"
        )]
        let beyond = count.wrapping_sub(self.reported as u32) & MASK;
        if self.counts_in_ring && (1..HALF).contains(&beyond) {
            let since = *self.missing_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.result_timeout {
                return Err(self.faulted(vec![FAULTS[MISSING]]));
            }
        } else {
            self.missing_since = None;
        }
        let is_reported = count & COUNT_ERROR != 0 || self.errors != 0;
        let is_due = self.idle.is_due();
        if !is_reported && !is_due {
            return Ok(());
        }
        let status = self.channel.read(channel::STATUS);
        if status == GONE {
            return Err(self.gone());
        }
        let errors = (status | self.errors) & ANY_ERROR;
        if errors == 0 && !is_reported {
            return self.check_running();
        }
        let mut faults: Vec<_> = (ERRORS.iter().zip(FAULTS))
            .filter(|(bit, _)| errors & **bit != 0)
            .map(|(_, name)| *name)
            .collect();
        if faults.is_empty() {
            faults.push(FAULTS[UNNAMED]);
        }
        Err(self.faulted(faults))
    }

    /// Returns an error if the channel does not run, because the card was reset or another program stopped the channel.
    fn check_running(&self) -> Result<(), EngineError> {
        match self.channel.read(channel::CONTROL) {
            GONE => Err(self.gone()),
            control if control & RUN == 0 => Err(self.faulted(vec![FAULTS[STOPPED]])),
            _ => Ok(()),
        }
    }

    /// Enables the channel's interrupt.
    fn enable_interrupt(&self) {
        let Some(ChannelInterrupt { bit, .. }) = self.signal else {
            return;
        };
        // All channels use vector 0.
        let vectors = irq::vectors(bit);
        let value = irq::vector(bit).set(self.irq.read(vectors), 0);
        self.irq.write(vectors, value);
        self.irq.write(irq::CHANNELS_SET, 1 << bit);
    }

    /// Disables the channel's interrupt.
    fn disable_interrupt(&self) {
        let Some(ChannelInterrupt { bit, .. }) = self.signal else {
            return;
        };
        self.channel
            .write(channel::INTERRUPTS_CLEAR, ANY_ERROR | DESCRIPTOR_DONE);
        self.irq.write(irq::CHANNELS_CLEAR, 1 << bit);
    }

    /// Programs the channel for `slots`; it does not run yet.
    fn program(&mut self, slots: &Slots) -> Result<(), EngineError> {
        let name = self.device.name();
        check_slots(name, slots, &self.caps(), self.address_bits)?;
        let count = slots.addresses.len();
        if !self.has_credits && (count as u64) <= AHEAD {
            return Err(too_few_slots(name, count, AHEAD));
        }
        self.channel.write(channel::CONTROL_CLEAR, u32::MAX);
        idle(name, &self.channel, self.number)?;
        let ring = match self.ring.take() {
            Some(ring) if ring.slots() == count => ring,
            _ => Ring::new(self.device.clone(), count)?,
        };
        ring.program(slots);
        self.first = slots.first;
        self.slot_bytes = slots.bytes;
        self.counts_in_ring = slots.doorbell.is_none();
        (self.credited, self.reported, self.errors) = (0, 0, 0);
        self.count = Count::new(1 << COUNT_BITS);
        (self.missing_since, self.empty, self.continues) = (None, None, None);
        self.idle.restart();
        // Clears earlier errors.
        self.channel.read(channel::STATUS_CLEAR);

        let (low, high) = halves(slots.doorbell.unwrap_or_else(|| ring.count_address()));
        self.channel.write(channel::WRITE_BACK_LOW, low);
        self.channel.write(channel::WRITE_BACK_HIGH, high);
        let mask = match self.signal {
            Some(_) => ANY_ERROR | DESCRIPTOR_DONE,
            None => 0,
        };
        self.channel.write(channel::INTERRUPTS, mask);
        self.enable_interrupt();
        let (low, high) = halves(ring.descriptor(slots.first));
        self.sgdma.write(sgdma::FIRST_LOW, low);
        self.sgdma.write(sgdma::FIRST_HIGH, high);
        self.sgdma.write(sgdma::ADJACENT, 0);
        let mode = if self.has_credits {
            common::CREDIT_MODE_SET
        } else {
            common::CREDIT_MODE_CLEAR
        };
        self.common.write(mode, self.bit);
        self.common.write(common::HALT_CLEAR, self.bit);
        self.ring = Some(ring);
        Ok(())
    }
}

/// Mask of the count bits.
const MASK: u32 = (1 << COUNT_BITS) - 1;
/// Half of the range of the count.
const HALF: u32 = 1 << (COUNT_BITS - 1);

/// Waits until a stopped channel is idle.
fn idle(device: &str, window: &Window, channel: u64) -> Result<(), EngineError> {
    let mut status = 0;
    let is_idle = wait_until(LEFT_RUNNING, || {
        status = window.read(channel::STATUS);
        status == GONE || status & BUSY == 0
    });
    if status == GONE {
        return Err(EngineError::Gone {
            device: device.to_owned(),
        });
    }
    if is_idle {
        return Ok(());
    }
    Err(unfit(
        device,
        format!("channel {channel} is already busy (status {status:#010x}): reset the card"),
    ))
}

/// Explains why no XDMA core was found, with the register values that were read from each BAR.
fn not_found(device: &dyn Device) -> String {
    let identity = device.identity();
    let seen: Vec<String> = (0..6)
        .filter_map(|bar| {
            let registers = device.registers(bar).ok()?;
            Some(if registers.bytes() < SPACE {
                format!("BAR {bar} has only {:#x} bytes", registers.bytes())
            } else {
                let (irq, config) = (registers.read(IRQ), registers.read(CONFIG));
                format!("BAR {bar} reads {irq:#010x} and {config:#010x}")
            })
        })
        .collect();
    let seen = if seen.is_empty() {
        "the device has no BAR with registers".to_owned()
    } else {
        seen.join(", ")
    };
    format!(
        "no XDMA core in device {:04x}:{:04x}: expected {ID_IRQ:#x}.... at {IRQ:#x} and {ID_CONFIG:#x}.... at {CONFIG:#x} of a BAR, but {seen}; check that the design is loaded (reset or rescan the bus after loading it)",
        identity.vendor, identity.device
    )
}

// SAFETY: each descriptor has the address and the length of one slot. The descriptors are written only by `arm`, while
// the channel is idle, and stay in `ring` until the next `arm`. `arm` sets RUN as its last step; after that it fails
// only if the card was removed. `quiesce` clears RUN and waits until the channel is idle.
unsafe impl Engine for Xdma {
    fn info(&self) -> &'static EngineInfo {
        &Self::INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    fn caps(&self) -> Caps {
        Caps {
            supports_backpressure: self.has_credits,
            doorbell_bits: if self.has_credits { COUNT_BITS } else { 0 },
            alignment: self.alignment,
            ..Caps::of(&Self::INFO)
        }
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        self.program(slots).map_err(ArmError::Stopped)?;
        // Enabling the error bits makes the status register show errors. Both `DESCRIPTOR_DONE` and `WRITE_BACK` are
        // set, because the documentation does not specify whether one works without the other.
        self.channel.write(
            channel::CONTROL,
            RUN | DESCRIPTOR_DONE | ANY_ERROR | WRITE_BACK,
        );
        if self.channel.read(channel::STATUS) == GONE {
            return Err(ArmError::Started(self.gone()));
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        if self.collect_finished(done)? == 0 && done.room() > 0 {
            self.check_errors()?;
        }
        Ok(())
    }

    fn poll_stopped(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.collect_finished(done)?;
        Ok(())
    }

    fn credit(&mut self, slots: u32) {
        if !self.has_credits || slots == 0 {
            return;
        }
        self.credited += u64::from(slots);
        // The ring has no more slots than [`MAX_CREDITS`], so the credit register cannot overflow.
        self.sgdma.write(sgdma::CREDITS, slots);
    }

    fn overwritten(&mut self) -> Result<u64, EngineError> {
        let (false, Some(ring)) = (self.has_credits, &self.ring) else {
            return Ok(0);
        };
        // Reads the register instead of the word in memory: when the read returns, all counted transfers have been
        // written.
        let count = self.channel.read(channel::COUNT);
        if count == GONE && self.channel.read(channel::ID) == GONE {
            return Err(self.gone());
        }
        Ok((self.finished(count)? + AHEAD).saturating_sub(ring.slots() as u64))
    }

    fn overwritten_stopped(&mut self) -> Result<u64, EngineError> {
        let (false, Some(ring)) = (self.has_credits, &self.ring) else {
            return Ok(0);
        };
        Ok((self.finished(ring.count())? + AHEAD).saturating_sub(ring.slots() as u64))
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        let Some(signal) = &self.signal else {
            return Ok(false);
        };
        if !signal.interrupt.wait(limit) {
            // No interrupt within the limit: the next empty poll must check the status register.
            self.idle.demand();
            return Ok(true);
        }
        // The order is: disable, clear, enable. An event in between either raises an interrupt after interrupts are
        // enabled again, or is found by the following poll.
        let all = ANY_ERROR | DESCRIPTOR_DONE;
        self.channel.write(channel::INTERRUPTS_CLEAR, all);
        let status = self.channel.read(channel::STATUS_CLEAR);
        if status == GONE {
            return Err(self.gone());
        }
        self.errors |= status & ANY_ERROR;
        self.channel.write(channel::INTERRUPTS_SET, all);
        Ok(true)
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        self.channel.write(channel::CONTROL_CLEAR, RUN);
        // The engine finishes the descriptor in progress first. A removed device does not write.
        let is_idle = wait_until(timeout, || {
            let status = self.channel.read(channel::STATUS);
            status == GONE || status & BUSY == 0
        });
        if !is_idle {
            return Err(QuiesceTimeout {
                engine: format!(
                    "{} channel {} of {}",
                    Self::INFO.name,
                    self.number,
                    self.device.name()
                ),
                waited: timeout,
            });
        }
        self.channel.write(channel::CONTROL_CLEAR, u32::MAX);
        self.channel.read(channel::STATUS_CLEAR);
        self.disable_interrupt();
        self.common.write(common::CREDIT_MODE_CLEAR, self.bit);
        Ok(())
    }
}
