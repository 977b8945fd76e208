//! GVCP, the control protocol of GigE Vision: commands to a camera on port 3956, and their acknowledgements; big endian.
//!
//! A command begins with 42, flags, command (2 bytes), length (2), request id (2). An acknowledgement begins with its status (2),
//! command (2), length (2), request id (2).

use super::{Packet, Recognised, Suggestion, be, percent};
use crate::inspect::account::Numbering;

const KEY: u8 = 0x42;
const HEADER: usize = 8;
/// Commands: discovery, resend, read and write registers and memory. The acknowledgement of each is the next number.
const COMMANDS: [u64; 6] = [0x0002, 0x0040, 0x0080, 0x0082, 0x0084, 0x0086];

fn is_message(packet: &Packet) -> bool {
    let head = &packet.head;
    let (Some(command), Some(length)) = (be::<2>(head, 2), be::<2>(head, 4)) else {
        return false;
    };
    let is_command = head[0] == KEY && COMMANDS.contains(&command);
    let is_answer =
        COMMANDS.contains(&command.wrapping_sub(1)) && (head[0] == 0 || head[0] == 0x80);
    let is_whole = usize::try_from(length).is_ok_and(|length| packet.length == HEADER + length);
    is_whole && (is_command || is_answer)
}

/// Recognises GVCP.
pub(super) fn recognise(packets: &[&Packet]) -> Option<Recognised> {
    let valid = packets.iter().filter(|packet| is_message(packet)).count();
    let confidence = percent(valid, packets.len());
    (confidence >= 90).then(|| Recognised {
        name: "GigE Vision control (GVCP)".to_owned(),
        confidence,
        why: vec![format!(
            "{confidence} % of the packets are commands to a camera or acknowledgements, with their length at byte 4"
        )],
        ambiguous: Vec::new(),
        numbering: Numbering {
            bits: 16,
            step: 1,
            packets: 1,
            range: None,
        },
        places: vec![None; packets.len()],
        layout: "gvcp".to_owned(),
        suggestion: Suggestion::None(
            "these are control messages; the samples are in the stream (GVSP)".to_owned(),
        ),
    })
}
