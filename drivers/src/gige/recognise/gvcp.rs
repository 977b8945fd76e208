//! Recognises GVCP, the control protocol of GigE Vision: commands to a camera, and their acknowledgements.

use crate::gige::gvcp::{HEADER, KEY, command};
use crate::packet::recognise::{
    CapturedPacket, MIN_SHARE, Numbering, Recognised, Suggestion, be, percent,
};

/// Reading and writing memory, which daq does not use.
const READ_MEMORY: u16 = 0x0084;
const WRITE_MEMORY: u16 = 0x0086;
/// The commands. The acknowledgement of each is the next number.
const COMMANDS: [u16; 6] = [
    command::DISCOVERY,
    command::RESEND,
    command::READ,
    command::WRITE,
    READ_MEMORY,
    WRITE_MEMORY,
];

fn is_message(packet: &CapturedPacket) -> bool {
    let head = &packet.head;
    let (Some(command), Some(length)) = (be::<2>(head, 2), be::<2>(head, 4)) else {
        return false;
    };
    let is_known = |number: u64| COMMANDS.iter().any(|known| u64::from(*known) == number);
    let is_command = head[0] == KEY && is_known(command);
    let is_answer = is_known(command.wrapping_sub(1)) && (head[0] == 0 || head[0] == 0x80);
    let is_whole = usize::try_from(length).is_ok_and(|length| packet.length == HEADER + length);
    is_whole && (is_command || is_answer)
}

/// Recognises GVCP.
pub(super) fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let valid = packets.iter().filter(|packet| is_message(packet)).count();
    let confidence = percent(valid, packets.len());
    (confidence >= MIN_SHARE).then(|| Recognised {
        name: "GigE Vision control (GVCP)".to_owned(),
        confidence,
        why: vec![format!(
            "{confidence} % of the packets are commands to a camera or acknowledgements, with their length at byte 4"
        )],
        ambiguous: Vec::new(),
        numbering: Numbering::PLAIN,
        places: vec![None; packets.len()],
        layout: "gvcp".to_owned(),
        suggestion: Suggestion::None(
            "these are control messages; the samples are in the stream (GVSP)".to_owned(),
        ),
    })
}
