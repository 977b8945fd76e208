//! Linux socket filters: which packets a UDP socket accepts, and which of several sockets of a port receives a packet.
//!
//! The filters are classic BPF, as in `linux/filter.h`, and need no privilege. Linux counts rejected packets as drops of
//! the socket.

use crate::packet::Selector;
use crate::packet::selector::Condition;
use crate::sender::Allowed;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Socket option that attaches a filter, from `asm-generic/socket.h`; the libc crate defines this constant for few platforms
/// only.
const SO_ATTACH_FILTER: i32 = 26;
/// Socket option that attaches a program which selects a socket of a port.
const SO_ATTACH_REUSEPORT_CBPF: i32 = 51;
/// Size of the UDP header in bytes.
const UDP_HEADER: u32 = 8;
/// Offset of the source address in the headers of IPv4 and IPv6.
const SOURCE: [i32; 2] = [12, 8];
/// Return values of the filter: accept the whole packet, or drop it.
const ACCEPT: u32 = u32::MAX;
const REFUSE: u32 = 0;

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    #[expect(clippy::cast_possible_truncation, reason = "codes have 16 bits")]
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

const fn load(size: u32, offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, offset)
}

const fn and(mask: u32) -> libc::sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask)
}

const fn equal(value: u32, jt: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, 0, value)
}

const fn answer(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

/// Appends a test of `conditions` to `program`. A packet that does not meet one of them continues after the `more` instructions that
/// follow. Packet offset `start` is the start of the datagram.
fn append_test(
    program: &mut Vec<libc::sock_filter>,
    conditions: &[Condition],
    start: u32,
    more: usize,
) {
    let mut jumps = Vec::new();
    for condition in conditions {
        let size = match condition.bytes {
            1 => libc::BPF_B,
            2 => libc::BPF_H,
            _ => libc::BPF_W,
        };
        program.push(load(size, start + condition.offset));
        program.push(and(condition.mask));
        let values = condition.values.len();
        for (i, value) in condition.values.iter().enumerate() {
            // A match continues after the other values and the jump.
            program.push(equal(*value, u8::try_from(values - i).unwrap_or(u8::MAX)));
        }
        jumps.push(program.len());
        program.push(instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, 0));
    }
    let end = program.len() + more;
    for at in jumps {
        program[at].k = u32::try_from(end - at - 1).unwrap_or(u32::MAX);
    }
}

/// Returns the program that selects the socket of a datagram among the sockets of a port, in the order in which they were opened. The
/// socket with the index `i` receives the datagrams of `selectors[i]`, and the first socket also receives all others. Packet offset 0
/// is the start of the datagram.
fn selection(selectors: &[&Selector]) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for (i, selector) in (0..).zip(selectors) {
        append_test(&mut program, &selector.conditions, 0, 1);
        program.push(answer(i));
    }
    program.push(answer(0));
    program
}

/// Makes Linux deliver the datagrams to the port of `socket`, which several sockets share, to the sockets of `selectors`.
pub(crate) fn select(socket: BorrowedFd<'_>, selectors: &[&Selector]) -> io::Result<()> {
    attach_program(socket, SO_ATTACH_REUSEPORT_CBPF, selection(selectors))
}

/// Which packets a socket accepts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accepted<'a> {
    /// The senders; `None` for every sender.
    pub(crate) from: Option<&'a [Allowed]>,
    /// The streams; `None` for every stream.
    pub(crate) streams: Option<&'a Selector>,
}

/// Returns the program that accepts packets of one IP version. Packet offset 0 is the UDP header.
fn program(accepted: Accepted<'_>, is_ipv4: bool) -> Vec<libc::sock_filter> {
    let senders = match accepted.from {
        Some(allowed) => of_senders(allowed, is_ipv4),
        None => vec![answer(ACCEPT)],
    };
    let mut program = Vec::new();
    if let Some(streams) = accepted.streams {
        append_test(&mut program, &streams.conditions, UDP_HEADER, senders.len());
    }
    program.extend(senders);
    program.push(answer(REFUSE));
    program
}

/// Returns the instructions that accept packets from `allowed` senders of one IP version. Other packets continue after them.
fn of_senders(allowed: &[Allowed], is_ipv4: bool) -> Vec<libc::sock_filter> {
    let source = libc::SKF_NET_OFF + SOURCE[usize::from(!is_ipv4)];
    let mut program = Vec::new();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "an entry has at most 4 words and 15 instructions"
    )]
    for entry in allowed
        .iter()
        .filter(|entry| entry.network.is_ipv4() == is_ipv4)
    {
        let mut own = Vec::new();
        for (i, word, mask) in entry.comparisons() {
            let offset = source + 4 * i as i32;
            own.push(load(libc::BPF_W, offset.cast_unsigned()));
            if mask != u32::MAX {
                own.push(and(mask));
            }
            own.push(equal(word, 0));
        }
        if let Some(port) = entry.port {
            own.push(load(libc::BPF_H, 0));
            own.push(equal(port.into(), 0));
        }
        own.push(answer(ACCEPT));
        // On a mismatch, jump past the end of this entry.
        let end = own.len();
        let jump = equal(0, 0).code;
        for (at, instruction) in own.iter_mut().enumerate() {
            if instruction.code == jump {
                instruction.jf = (end - at - 1) as u8;
            }
        }
        program.extend(own);
    }
    program
}

/// Makes Linux drop the packets to `socket` that are not `accepted`. Replaces another filter. For a socket that is not bound yet, no
/// other packet can arrive before.
pub(crate) fn attach(
    socket: BorrowedFd<'_>,
    accepted: Accepted<'_>,
    is_ipv4: bool,
) -> io::Result<()> {
    attach_program(socket, SO_ATTACH_FILTER, program(accepted, is_ipv4))
}

fn attach_program(
    socket: BorrowedFd<'_>,
    option: i32,
    mut program: Vec<libc::sock_filter>,
) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_mut_ptr(),
    };
    #[expect(clippy::cast_possible_truncation, reason = "a pointer and a length")]
    let length = size_of_val(&filter) as libc::socklen_t;
    // SAFETY:
    // - `filter` and the `len` instructions that it points to live until the call returns, and Linux copies them.
    // - `length` is the size of `filter`.
    // - The descriptor is open, because it is borrowed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const filter).cast(),
            length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Removes the filter of `socket`, which must have one.
pub(crate) fn detach(socket: BorrowedFd<'_>) -> io::Result<()> {
    daq_net::set_int(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
}

#[cfg(test)]
mod tests {
    use crate::sys::socket::{Options, UdpSocket};
    use std::net::UdpSocket as Sender;
    use std::time::Duration;

    /// Returns whether a socket on `local` that allows `from` receives a datagram from a socket on `sender`.
    fn receives(local: &str, from: &[&str], sender: &Sender) -> bool {
        let options = Options {
            from: from.iter().map(|text| text.parse().unwrap()).collect(),
            ..Options::default()
        };
        let socket = UdpSocket::open(local.parse().unwrap(), &options).unwrap();
        // The loopback interface delivers or drops the datagram before this call returns.
        sender.send_to(&[1], socket.local()).unwrap();
        let refused = socket.mem_info().unwrap().drops;
        let came = socket.wait(Duration::ZERO).unwrap();
        assert_eq!(refused, u32::from(!came), "{from:?}");
        came
    }

    #[test]
    fn closed_socket_counts_packets_until_it_accepts_them() {
        let sender = Sender::bind("127.0.0.1:0").unwrap();
        let other = Sender::bind("127.0.0.2:0").unwrap();
        for (from, accepted) in [(&[][..], 2), (&["127.0.0.1".parse().unwrap()][..], 1)] {
            let options = Options {
                closed: true,
                ..Options::default()
            };
            let socket = UdpSocket::open("0.0.0.0:0".parse().unwrap(), &options).unwrap();
            let to = ("127.0.0.1", socket.local().port());
            let send = || {
                sender.send_to(&[1], to).unwrap();
                other.send_to(&[1], to).unwrap();
            };
            send();
            assert!(!socket.wait(Duration::ZERO).unwrap());
            assert_eq!(socket.accept_packets(from).unwrap(), 2);
            send();
            assert!(socket.wait(Duration::ZERO).unwrap());
            let drops = socket.mem_info().unwrap().drops;
            assert_eq!(drops, 4 - accepted, "{from:?}");
        }
    }

    #[test]
    fn linux_drops_packets_of_other_senders() {
        let sender = Sender::bind("127.1.2.3:0").unwrap();
        let port = sender.local_addr().unwrap().port();
        let own = format!("127.1.2.3:{port}");
        let other = format!("127.1.2.3:{}", port ^ 1);
        for (from, expected) in [
            (vec!["127.1.2.3"], true),
            (vec!["127.1.2.4"], false),
            (vec!["127.1.2.4", "127.1.0.0/16"], true),
            (vec!["127.2.0.0/16", "fd00::/8"], false),
            (vec![own.as_str()], true),
            (vec![other.as_str()], false),
            (vec![other.as_str(), "10.0.0.0/8", own.as_str()], true),
            (vec!["0.0.0.0/0"], true),
        ] {
            assert_eq!(
                receives("127.0.0.1:0", &from, &sender),
                expected,
                "{from:?}"
            );
        }
    }

    #[test]
    fn linux_drops_packets_of_other_ipv6_senders() {
        let Ok(sender) = Sender::bind("[::1]:0") else {
            eprintln!("skipped: this machine has no IPv6 loopback");
            return;
        };
        for (from, expected) in [
            (vec!["::1"], true),
            (vec!["::2"], false),
            (vec!["::/127"], true),
            (vec!["fd00::/8", "::/64"], true),
            (vec!["::1:0:0:0:0/64", "0.0.0.0/0"], false),
        ] {
            assert_eq!(receives("[::1]:0", &from, &sender), expected, "{from:?}");
        }
    }
}
