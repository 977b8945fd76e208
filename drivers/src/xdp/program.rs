//! The XDP program that selects the packets of a source from all packets that an interface receives.
//!
//! ```text
//!   Ethernet ─▶ at most one tag ─▶ IPv4 without options, no fragment ─▶ UDP ─▶ address and port of the source ─▶ socket
//!                                  IPv6 without extensions                     everything else ─▶ network stack
//! ```
//! The program is assembled here, instruction by instruction, so that no compiler is needed at run time. Linux verifies it
//! when it is loaded: every read must be preceded by a check of the packet's length.

use crate::sender::Allowed;
use crate::sys::bpf::Instruction;
use std::net::{IpAddr, SocketAddr};

// Registers, named after their contents.
const RESULT: u8 = 0;
const ARGUMENT_1: u8 = 1;
/// Register that holds the start of the packet, and later the second argument.
const PACKET: u8 = 2;
/// Register that holds the end of the packet, and later the third argument.
const END: u8 = 3;
const SCRATCH: u8 = 4;
const TYPE: u8 = 5;
const PORT: u8 = 6;
const ADDRESS: u8 = 7;
const WORD: u8 = 8;
const CONTEXT: u8 = 9;

/// Return value: pass the packet to the network stack.
pub(super) const PASS: i32 = 2;
/// Return value: drop the packet.
pub(super) const DROP: i32 = 1;
/// Return value: redirect the packet to a socket.
#[cfg(test)]
pub(super) const REDIRECT: u32 = 4;
/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;
/// The helper `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// Value of `src_reg` in a 64-bit immediate load, if the immediate is the file descriptor of a map (`BPF_PSEUDO_MAP_FD`).
const MAP_DESCRIPTOR: u8 = 1;

/// Target of jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(usize);

/// Sizes of loads: `BPF_B`, `BPF_H`, `BPF_W`.
#[derive(Clone, Copy)]
enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
}

/// Conditions of jumps on the low 32 bits: `BPF_JEQ`, `BPF_JNE`.
#[derive(Clone, Copy)]
enum If {
    Equal = 0x10,
    Unequal = 0x50,
}

/// Collects instructions and resolves jump targets at the end.
#[derive(Debug, Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<Option<usize>>,
}

impl Assembler {
    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places `label` before the next instruction.
    fn here(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction {
            code,
            registers: to | from << 4,
            offset,
            immediate,
        });
    }

    /// `to = *(size *)(from + offset)`, zero-extended.
    fn load(&mut self, size: Size, to: u8, from: u8, offset: i16) {
        self.push(0x61 | size as u8, to, from, offset, 0);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }

    fn add(&mut self, to: u8, value: i32) {
        self.push(0x07, to, 0, 0, value);
    }

    fn and(&mut self, to: u8, mask: i32) {
        self.push(0x57, to, 0, 0, mask);
    }

    fn load_map(&mut self, to: u8, map: i32) {
        self.push(0x18, to, MAP_DESCRIPTOR, 0, map);
        self.push(0, 0, 0, 0, 0);
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05, 0, 0, 0, 0);
    }

    /// Jumps if the low 32 bits of register `what` are equal (or unequal) to `value`.
    fn jump_if(&mut self, what: u8, is: If, value: u32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x06 | is as u8, what, 0, 0, value.cast_signed());
    }

    /// Jumps if the packet has fewer than `bytes` bytes. After this check, the verifier accepts reads of these bytes.
    fn need(&mut self, bytes: i32, or: Label) {
        self.copy(SCRATCH, PACKET);
        self.add(SCRATCH, bytes);
        self.jumps.push((self.code.len(), or));
        // A 64-bit comparison, because the operands are addresses.
        self.push(0x2d, SCRATCH, END, 0, 0);
    }

    fn call(&mut self, helper: i32) {
        self.push(0x85, 0, 0, 0, helper);
    }

    fn exit(&mut self) {
        self.push(0x95, 0, 0, 0, 0);
    }

    /// Returns the program.
    ///
    /// # Panics
    /// Panics if a label was not placed or a jump is too long. Programs of this module have neither.
    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("every label of a program has been placed");
            let distance = target.cast_signed() - (at.cast_signed() + 1);
            self.code[at].offset = i16::try_from(distance)
                .expect("jumps are short, because there are at most MAX_ADDRESSES addresses");
        }
        self.code
    }
}

/// Converts bytes of a packet to the value that a load instruction returns on this host.
fn half(bytes: [u8; 2]) -> u32 {
    u16::from_ne_bytes(bytes).into()
}

fn word(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Maximum number of addresses that one program can compare.
pub(super) const MAX_ADDRESSES: usize = 64;

/// Assembles a program that redirects packets for one of `addresses` to the socket of the packet's queue. `map` is the
/// file descriptor of the map from queues to sockets. All other packets, and packets of queues without a socket,
/// continue to the Linux network stack. If `from` is not empty, packets for `addresses` from other senders are dropped.
pub(super) fn assemble(addresses: &[SocketAddr], from: &[Allowed], map: i32) -> Vec<Instruction> {
    let mut a = Assembler::default();
    let [pass, take, tagged, network, six] = std::array::from_fn(|_| a.label());
    a.copy(CONTEXT, ARGUMENT_1);
    a.load(Size::Word, PACKET, CONTEXT, DATA);
    a.load(Size::Word, END, CONTEXT, DATA_END);
    a.need(14, pass);
    a.load(Size::Half, TYPE, PACKET, 12);
    for tag in [[0x81, 0x00], [0x88, 0xa8]] {
        a.jump_if(TYPE, If::Equal, half(tag), tagged);
    }
    a.jump(network);
    a.here(tagged);
    a.need(18, pass);
    a.load(Size::Half, TYPE, PACKET, 16);
    // From here on, the network header begins at offset 14 with or without a tag.
    a.add(PACKET, 4);
    a.here(network);
    a.jump_if(TYPE, If::Equal, half([0x86, 0xdd]), six);
    a.jump_if(TYPE, If::Unequal, half([0x08, 0x00]), pass);
    four(&mut a, addresses, from, pass, take);
    a.here(six);
    self::six(&mut a, addresses, from, pass, take);
    a.here(pass);
    a.set(RESULT, PASS);
    a.exit();
    a.here(take);
    a.load(Size::Word, PACKET, CONTEXT, QUEUE);
    a.load_map(ARGUMENT_1, map);
    // Return value if the map has no socket for this queue.
    a.set(END, PASS);
    a.call(REDIRECT_MAP);
    a.exit();
    a.finish()
}

/// Selects IPv4 packets: header at offset 14, addresses at 26 and 30, UDP at 34.
fn four(a: &mut Assembler, addresses: &[SocketAddr], from: &[Allowed], pass: Label, take: Label) {
    let ours = a.label();
    a.need(42, pass);
    a.load(Size::Byte, WORD, PACKET, 14);
    a.jump_if(WORD, If::Unequal, 0x45, pass);
    a.load(Size::Byte, WORD, PACKET, 23);
    a.jump_if(WORD, If::Unequal, 17, pass);
    // More fragments follow, or this is not the first fragment.
    a.load(Size::Half, WORD, PACKET, 20);
    a.and(WORD, half([0x3f, 0xff]).cast_signed());
    a.jump_if(WORD, If::Unequal, 0, pass);
    a.load(Size::Word, ADDRESS, PACKET, 30);
    a.load(Size::Half, PORT, PACKET, 36);
    for address in addresses {
        let IpAddr::V4(ip) = address.ip() else {
            continue;
        };
        let next = a.label();
        a.jump_if(ADDRESS, If::Unequal, word(&ip.octets()), next);
        a.jump_if(PORT, If::Equal, half(address.port().to_be_bytes()), ours);
        a.here(next);
    }
    a.jump(pass);
    if addresses.iter().any(SocketAddr::is_ipv4) {
        a.here(ours);
        senders(a, from, true, take);
    }
}

/// Handles a packet for one of the source's addresses: redirects it if its sender is allowed, otherwise drops it.
fn senders(a: &mut Assembler, from: &[Allowed], is_ipv4: bool, take: Label) {
    let (address, port) = if is_ipv4 { (26_i16, 34) } else { (22, 54) };
    let allowed = from
        .iter()
        .filter(|entry| entry.network.is_ipv4() == is_ipv4);
    let mut takes_all = from.is_empty();
    for entry in allowed {
        let next = a.label();
        let comparisons = entry.comparisons();
        // The verifier rejects unreachable instructions, such as those after an entry that matches every sender.
        takes_all |= comparisons.is_empty() && entry.port.is_none();
        if takes_all {
            break;
        }
        for (i, word, mask) in comparisons {
            let offset = address + 4 * i16::try_from(i).unwrap_or(0);
            a.load(Size::Word, WORD, PACKET, offset);
            if mask != u32::MAX {
                a.and(WORD, mask.to_be().cast_signed());
            }
            a.jump_if(WORD, If::Unequal, word.to_be(), next);
        }
        if let Some(sender) = entry.port {
            a.load(Size::Half, PORT, PACKET, port);
            a.jump_if(PORT, If::Unequal, half(sender.to_be_bytes()), next);
        }
        a.jump(take);
        a.here(next);
    }
    if takes_all {
        a.jump(take);
    } else {
        a.set(RESULT, DROP);
        a.exit();
    }
}

/// Selects IPv6 packets: header at offset 14, addresses at 22 and 38, UDP at 54.
fn six(a: &mut Assembler, addresses: &[SocketAddr], from: &[Allowed], pass: Label, take: Label) {
    let ours = a.label();
    a.need(62, pass);
    a.load(Size::Byte, WORD, PACKET, 14);
    a.and(WORD, 0xf0);
    a.jump_if(WORD, If::Unequal, 0x60, pass);
    a.load(Size::Byte, WORD, PACKET, 20);
    a.jump_if(WORD, If::Unequal, 17, pass);
    a.load(Size::Half, PORT, PACKET, 56);
    for address in addresses {
        let IpAddr::V6(ip) = address.ip() else {
            continue;
        };
        let next = a.label();
        a.jump_if(PORT, If::Unequal, half(address.port().to_be_bytes()), next);
        for (offset, part) in (38_i16..).step_by(4).zip(ip.octets().chunks(4)) {
            a.load(Size::Word, WORD, PACKET, offset);
            a.jump_if(WORD, If::Unequal, word(part), next);
        }
        a.jump(ours);
        a.here(next);
    }
    a.jump(pass);
    if addresses.iter().any(SocketAddr::is_ipv6) {
        a.here(ours);
        senders(a, from, false, take);
    }
}

#[cfg(test)]
mod tests;
