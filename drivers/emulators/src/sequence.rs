//! Checks that the frames of an emulated device contain the sequence numbers that a source expects.

use crate::pattern;
use daq_core::config::Problem;
use daq_core::dma::Step;
use daq_core::units::ByteSize;
use daq_drivers::fpga::FpgaConfig;
use daq_drivers::fpga::keys::{DeviceKey, frame_sequence};

/// Number of frames that are checked.
const FRAMES: u32 = 8;

/// Checks that the frames of an emulated device in this process contain the numbers that `sequence` describes, in slots
/// of `slot_bytes` bytes. The check is possible because the device's data is known in advance.
pub(crate) fn check(config: &FpgaConfig, slot_bytes: usize) -> Result<(), Problem> {
    let (DeviceKey::Emulated(card), Some(sequence)) = (&config.device, &config.sequence) else {
        return Ok(());
    };
    let Ok(mut numbers) = frame_sequence(sequence, config.max_gap) else {
        return Ok(());
    };
    let options = config.emulated.clone().unwrap_or_default();
    let packet = options.packet_bytes();
    // Only this device ends a transfer at the end of a packet.
    let ends = card == "xdma" && options.packet.is_some();
    let slot = slot_bytes as u64;
    let max = options.packets.unwrap_or(u64::MAX).saturating_mul(packet);
    let (mut at, mut bytes) = (0_u64, [0; 8]);
    for frame in 0..FRAMES {
        let rest = if ends { packet - at % packet } else { slot };
        let length = rest.min(slot);
        if at.saturating_add(length) > max {
            break;
        }
        let number = &mut bytes[..numbers.bytes.min(8)];
        pattern::fill(options.pattern, packet, at + numbers.offset as u64, number);
        let raw = numbers.read(number);
        let is_inside = numbers.extent().end as u64 <= length;
        let goes_on = is_inside && (frame == 0 || numbers.next(raw, 0) == Step::Next);
        if frame == 0 {
            numbers.next(raw, 0);
        }
        if !goes_on {
            let (packet, slot) = (ByteSize(packet), ByteSize(slot));
            let message = format!(
                "the card's frames do not contain consecutive sequence numbers: the number in frame {frame} is missing or does \
                 not follow the number in the previous frame. The packet size is {packet}, the pattern is `{}`, and the \
                 slot size is {slot}",
                options.pattern.name()
            );
            return Err(Problem::at("sequence", message).help(format!(
                "make each packet as long as a slot, with a number at the start of the packet: set sequence = {{ offset = 0, \
                 bytes = 8, endian = \"little\" }} and emulated = {{ packet = \"{slot}\", pattern = \"sequence\" }}"
            )));
        }
        at += length;
    }
    Ok(())
}
