//! Loads the program into Linux: its verifier must accept the program, and the program must select the correct packets.

use super::*;
use crate::sys::bpf;
use crate::sys::interface::Interface;
use crate::sys::own_network;
use crate::sys::xdp::{Options, XdpSocket};
use crate::xdp::headers;
use daq_core::region::{HostOptions, Region};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// A loaded program with its map and socket, which must stay open.
struct Loaded {
    program: OwnedFd,
    _map: OwnedFd,
    _socket: XdpSocket,
}

/// Loads the program for `addresses`, with a socket for queue 0 of a separate loopback interface. Logs the reason and
/// returns `None` if the process has no permission or Linux has no `AF_XDP`.
///
/// # Panics
/// Panics on any other error, for example if the verifier rejects the program.
fn loaded(addresses: &[SocketAddr], pieces: bool) -> Option<Loaded> {
    loaded_from(addresses, &[], pieces)
}

/// Loads the program as [`loaded`] does, but for packets from the senders `from` only.
fn loaded_from(addresses: &[SocketAddr], from: &[&str], pieces: bool) -> Option<Loaded> {
    let from: Vec<_> = from.iter().map(|text| text.parse().unwrap()).collect();
    match try_to_load(addresses, &from, pieces) {
        Ok(loaded) => Some(loaded),
        Err(why @ (Errno::PERM | Errno::NOSYS)) => {
            eprintln!("skipped: no program can be loaded (root and AF_XDP): {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

fn try_to_load(addresses: &[SocketAddr], from: &[Allowed], pieces: bool) -> Result<Loaded, Errno> {
    let number = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    // A separate network namespace has its own loopback interface, so no other test uses its queue.
    own_network::enter()?;
    let interface = Interface::find("lo")?;
    let options = Options {
        interface: interface.index(),
        queue: 0,
        chunk: 2048,
        chunks: 64,
        pieces: false,
        zero_copy: Some(false),
        batch: 8,
        busy_poll: Duration::ZERO,
    };
    let memory = Region::host(64 * 2048, HostOptions::default()).unwrap();
    let socket = XdpSocket::open(memory, &options).map_err(|(_, errno)| errno)?;
    let map = bpf::socket_map(1).map_err(number)?;
    bpf::map_socket(map.as_fd(), 0, socket.as_fd()).map_err(number)?;
    let mut log = vec![0; 1 << 16];
    let code = assemble(addresses, from, map.as_raw_fd());
    let program = bpf::load(&code, pieces, &mut log).map_err(|error| {
        let output = log.split(|byte| *byte == 0).next().unwrap_or_default();
        assert!(
            output.is_empty(),
            "{error}: {}",
            String::from_utf8_lossy(output)
        );
        number(error)
    })?;
    Ok(Loaded {
        program,
        _map: map,
        _socket: socket,
    })
}

/// Runs `test` on a separate thread. Its network namespace ends with the thread.
fn apart(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().unwrap();
}

fn addresses() -> Vec<SocketAddr> {
    let list = [
        "10.10.10.10:4950",
        "10.10.10.10:4951",
        "[fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd]:4950",
    ];
    list.iter()
        .map(|address| address.parse().unwrap())
        .collect()
}

#[test]
fn program_drops_packets_of_other_senders() {
    apart(|| {
        // The packets come from port 2313 (0x0909) of 10.10.10.10 and of fdfd:fdfd:….
        let six = "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd";
        let cases: [(&[&str], [bool; 2]); 7] = [
            (&["10.10.10.10", six], [true, true]),
            (&["10.10.10.11", "fdfd::/32"], [false, false]),
            (&["10.10.0.0/16"], [true, false]),
            (
                &["10.9.0.0/16", "10.10.10.8/30", "fdfd:fdfc::/31"],
                [true, true],
            ),
            (&["10.10.10.10:2313", "fd00::/9"], [true, false]),
            (&["10.10.10.10:2314", "fd00::/8"], [false, true]),
            (&["0.0.0.0/0", "10.10.10.10", "::/0"], [true, true]),
        ];
        for (from, expected) in cases {
            let Some(loaded) = loaded_from(&addresses(), from, true) else {
                return;
            };
            let answer = |packet: &[u8]| bpf::try_out(loaded.program.as_fd(), packet).unwrap();
            for (six, is_taken) in [false, true].into_iter().zip(expected) {
                let whole = headers::tests::packet(six, None, &[7; 100], 0);
                let wanted = if is_taken {
                    REDIRECT
                } else {
                    DROP.cast_unsigned()
                };
                assert_eq!(answer(&whole), wanted, "{from:?}, six: {six}");
                // Packets for another port are not redirected, regardless of their sender.
                let mut other = whole;
                let port = headers::payload(&other).unwrap().start - 6;
                other[port] ^= 0xff;
                assert_eq!(answer(&other), PASS.cast_unsigned(), "{from:?}, six: {six}");
            }
        }
    });
}

#[test]
fn program_selects_exactly_what_parser_accepts() {
    apart(|| {
        let Some(loaded) = loaded(&addresses(), true) else {
            return;
        };
        let picks = |packet: &[u8]| match bpf::try_out(loaded.program.as_fd(), packet).unwrap() {
            REDIRECT => true,
            answer => {
                assert_eq!(answer, PASS.cast_unsigned());
                false
            }
        };
        for six in [false, true] {
            for tag in [None, Some(0x8100), Some(0x88a8)] {
                let whole = headers::tests::packet(six, tag, &[7; 100], 0);
                assert!(picks(&whole), "six: {six}, tag: {tag:?}");
                // Try every other value of every byte before the payload. The packet must either be passed on, or be
                // one in which the parser finds the same payload.
                let found = headers::payload(&whole).unwrap();
                let port = found.start - 6;
                for at in 12..found.start {
                    for change in [1, 2, 0x10, 0x80, 0xff] {
                        let mut other = whole.clone();
                        other[at] ^= change;
                        // The program does not check length fields. The source counts such packets as rejected.
                        let refused = headers::payload(&other);
                        if refused == Err(headers::Wrong::Other) {
                            assert!(
                                !picks(&other),
                                "six: {six}, tag: {tag:?}, byte {at} ^ {change}"
                            );
                        }
                        if (port..port + 2).contains(&at) {
                            let second = !six && at == port + 1 && other[at] == 0x57;
                            assert_eq!(picks(&other), second, "port byte {at} ^ {change}");
                        }
                    }
                }
                // The destination address is the last 4 or 16 bytes before the UDP header.
                let address = found.start - 8;
                for at in address - if six { 16 } else { 4 }..address {
                    let mut other = whole.clone();
                    other[at] ^= 1;
                    assert!(!picks(&other), "address byte {at}");
                }
                // Truncate the packet at every length from 14 bytes.
                for cut in 14..found.start {
                    assert!(!picks(&whole[..cut]), "cut at {cut}");
                }
            }
        }
    });
}

#[test]
fn verifier_accepts_longest_program() {
    apart(|| {
        let many: Vec<SocketAddr> = (0..u16::try_from(MAX_ADDRESSES).unwrap())
            .map(|n| SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], 1000 + n)))
            .collect();
        for pieces in [false, true] {
            loaded(&many, pieces);
        }
    });
}
