use super::dissect::dissect;
use super::*;
use proptest::prelude::*;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

fn udp(payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 8).unwrap().to_be_bytes();
    [&[0x30, 0x39, 0x13, 0x56][..], &length, &[0, 0], payload].concat()
}

/// Builds an IPv4 packet with the given protocol and fragment word.
fn ipv4(protocol: u8, fragment: u16, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len() + 24).unwrap().to_be_bytes();
    let mut packet = vec![0x46, 0, length[0], length[1], 0, 1];
    packet.extend(fragment.to_be_bytes());
    // One word of options makes the header longer than 20 bytes.
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 239, 1, 2, 3, 1, 1, 1, 0]);
    packet.extend(body);
    packet
}

fn ipv6(first: u8, extensions: &[u8], body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(extensions.len() + body.len())
        .unwrap()
        .to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, length[0], length[1], first, 64];
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend("ff02::1:2".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend(extensions);
    packet.extend(body);
    packet
}

fn found(link: u32, frame: &[u8]) -> Result<(SocketAddr, Vec<u8>), Skip> {
    let found = dissect(DataLink::from(link), frame, frame.len())?;
    assert_eq!(found.source.port(), 12345);
    Ok((found.destination, frame[found.payload].to_vec()))
}

fn group() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(239, 1, 2, 3), 4950))
}

#[test]
fn pcap_every_link_layer_is_parsed() {
    let four = ipv4(17, 0x4000, &udp(b"payload"));
    let six = ipv6(17, &[], &udp(b"payload"));
    let group6 = SocketAddr::from(("ff02::1:2".parse::<Ipv6Addr>().unwrap(), 4950));
    for (packet, kind, group) in [(&four, [8, 0], group()), (&six, [0x86, 0xdd], group6)] {
        let ethernet = [&[0; 12][..], &kind, packet, &[0; 9]].concat();
        let tagged = [
            &[0; 12][..],
            &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7],
            &kind,
            packet,
        ]
        .concat();
        let cooked = [&[0; 14][..], &kind, packet].concat();
        let cooked2 = [&kind[..], &[0; 18], packet].concat();
        let loopback = [&[2, 0, 0, 0][..], packet].concat();
        let frames = [
            (1, ethernet),
            (1, tagged),
            (113, cooked),
            (276, cooked2),
            (0, loopback.clone()),
        ];
        for (link, frame) in frames
            .into_iter()
            .chain([(108, loopback), (101, packet.clone())])
        {
            assert_eq!(
                found(link, &frame),
                Ok((group, b"payload".to_vec())),
                "link type {link}"
            );
        }
    }
    assert_eq!(found(105, &four), Err(Skip::UnknownLink));
}

#[test]
fn pcap_ipv6_extension_headers_are_skipped() {
    // Hop-by-hop options, then an authentication header, then an atomic fragment header.
    let options = [[51, 0, 0, 0, 0, 0, 0, 0]].concat();
    let chain = [
        &options[..],
        &[44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[17, 0, 0, 0, 0, 0, 0, 9],
    ]
    .concat();
    assert_eq!(
        found(101, &ipv6(0, &chain, &udp(b"x"))).map(|found| found.1),
        Ok(b"x".to_vec())
    );
    let piece = [17, 0, 0, 1, 0, 0, 0, 9];
    let fragment = found(101, &ipv6(44, &piece, &udp(b"x")));
    assert!(matches!(fragment, Err(Skip::Fragment(_))), "{fragment:?}");
    assert_eq!(found(101, &ipv6(6, &[], &[0; 20])), Err(Skip::NotUdp));
}

#[test]
fn pcap_incomplete_datagrams_are_classified() {
    assert_eq!(found(101, &ipv4(6, 0, &[0; 20])), Err(Skip::NotUdp));
    assert_eq!(
        found(1, &[&[0; 12][..], &[8, 6], &[0; 28]].concat()),
        Err(Skip::NotUdp)
    );
    for fragment in [0x2000, 0x0001, 0x20b9] {
        let found = found(101, &ipv4(17, fragment, &udp(b"x")));
        assert!(matches!(found, Err(Skip::Fragment(_))), "{found:?}");
    }
    let payload = b"payload";
    let whole = ipv4(17, 0, &udp(payload));
    for cut in 0..whole.len() {
        // Without the UDP header, the destination is unknown.
        let destination = (cut >= whole.len() - payload.len()).then(group);
        assert_eq!(
            dissect(DataLink::RAW, &whole[..cut], whole.len()),
            Err(Skip::CutShort(destination)),
            "{cut}"
        );
        assert_eq!(
            dissect(DataLink::RAW, &whole[..cut], cut),
            Err(Skip::Malformed(destination)),
            "{cut}"
        );
    }
}

/// Returns the frames of a datagram with `payload` in fragments of `size` bytes.
fn fragments(is_v6: bool, number: u16, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
    let datagram = udp(payload);
    let chunks = datagram.chunks(size).enumerate();
    let fragment = |(i, chunk): (usize, &[u8])| {
        let (at, has_more) = (i * size, (i + 1) * size < datagram.len());
        if is_v6 {
            let word = (u16::try_from(at).unwrap() | u16::from(has_more)).to_be_bytes();
            let id = number.to_be_bytes();
            let header = [17, 0, word[0], word[1], 0, 0, id[0], id[1]];
            return ipv6(44, &header, chunk);
        }
        let word = u16::try_from(at / 8).unwrap() | u16::from(has_more) << 13;
        let mut packet = ipv4(17, word, chunk);
        packet[4..6].copy_from_slice(&number.to_be_bytes());
        // Ethernet adds bytes to short frames.
        packet.extend([0xee; 5]);
        packet
    };
    chunks.map(fragment).collect()
}

#[test]
fn pcap_fragments_are_assembled() {
    for is_v6 in [false, true] {
        let payloads: Vec<Vec<u8>> = (0..300_u16)
            .map(|n| {
                (0..3000)
                    .map(|i| ((n + i) % 251).to_le_bytes()[0])
                    .collect()
            })
            .collect();
        let mut frames: Vec<Vec<u8>> = Vec::new();
        for (number, payload) in (0..).zip(&payloads) {
            let mut parts = fragments(is_v6, number, payload, 1400);
            // In reverse order, or each one twice.
            match number % 3 {
                0 => parts.reverse(),
                1 => {
                    parts = parts
                        .into_iter()
                        .flat_map(|part| [part.clone(), part])
                        .collect();
                }
                _ => {}
            }
            frames.extend(parts);
        }
        let records: Vec<_> = frames.iter().map(|frame| (7, 123, &frame[..])).collect();
        let (all, capture) = read_all(&pcap(0xa1b2_c3d4, &records));
        let found: Vec<_> = all.into_iter().map(|(_, _, payload)| payload).collect();
        assert!(found == payloads, "{} of {}", found.len(), payloads.len());
        let used = found.len() as u64 + capture.joined() + capture.skipped().total();
        assert_eq!(capture.frames(), used);
    }
}

#[test]
fn pcap_datagram_without_one_fragment_is_skipped() {
    let whole = ipv4(17, 0, &udp(b"payload"));
    for is_v6 in [false, true] {
        for lost in 0..3 {
            let mut frames = fragments(is_v6, 9, &[7; 3000], 1400);
            frames.remove(lost);
            frames.push(whole.clone());
            let records: Vec<_> = frames.iter().map(|frame| (7, 123, &frame[..])).collect();
            let (all, capture) = read_all(&pcap(0xa1b2_c3d4, &records));
            assert_eq!(all.len(), 1);
            assert_eq!((capture.skipped().fragment, capture.joined()), (2, 0));
        }
    }
}

/// Builds a pcapng option.
fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut option = code.to_le_bytes().to_vec();
    option.extend(u16::try_from(value.len()).unwrap().to_le_bytes());
    option.extend(value);
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

#[test]
fn pcapng_options_without_a_time_never_refuse_packets() {
    let frame = ipv4(17, 0, &udp(b"payload"));
    let length = u32::try_from(frame.len()).unwrap().to_le_bytes();
    let time = |seconds: u64| {
        let units = seconds * 1_000_000;
        let words = [units >> 32, units & 0xffff_ffff];
        words
            .map(|word| u32::try_from(word).unwrap().to_le_bytes())
            .concat()
    };
    let file = |section: &[u8], interface: &[u8], seconds: u64| {
        let header = [
            &0x1a2b_3c4d_u32.to_le_bytes()[..],
            &[1, 0, 0, 0],
            &[0xff; 8],
            section,
        ];
        let link = [&[101, 0, 0, 0][..], &[0; 4], interface];
        let packet = [&[0; 4][..], &time(seconds), &length, &length, &frame];
        // Comments of packets are not read either.
        let comment = option(1, b"Z\xfcrich");
        let mut body = packet.concat();
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(comment);
        [
            block(0x0a0d_0d0a, &header.concat(), false),
            block(1, &link.concat(), false),
            block(6, &body, false),
        ]
        .concat()
    };
    let end = option(0, &[]);
    let offset = option(14, &(-3600_i64).to_le_bytes());
    for (section, interface, seconds) in [
        (vec![], vec![], 1000),
        // Without an end of the options.
        (option(3, b"Linux"), option(2, b"eth0"), 1000),
        // Not UTF-8.
        (
            [option(1, b"Z\xfcrich"), end.clone()].concat(),
            option(2, b"\xf3"),
            1000,
        ),
        // Options that exceed their block, or have another size than defined.
        (vec![1, 0, 200, 0], vec![9, 0, 0, 0], 1000),
        (vec![1], option(14, &[1]), 1000),
        (vec![], [offset.clone(), end].concat(), 4600),
        (vec![], offset, 4600),
    ] {
        let (all, capture) = read_all(&file(&section, &interface, seconds));
        assert_eq!(all.len(), 1, "{section:?} {interface:?}");
        assert_eq!(all[0].0, 1_000_000_000_000, "{interface:?}");
        assert!(!capture.is_torn());
    }
    // A time before 1970 is unknown.
    let before = option(14, &(-3600_i64).to_le_bytes());
    assert_eq!(read_all(&file(&[], &before, 5)).0[0].0, 0);
}

/// Builds a pcapng block.
fn block(kind: u32, body: &[u8], big: bool) -> Vec<u8> {
    let length = u32::try_from(body.len().next_multiple_of(4) + 12).unwrap();
    let word = |value: u32| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
    [
        &word(kind)[..],
        &word(length),
        body,
        &padding,
        &word(length),
    ]
    .concat()
}

/// Builds a pcapng file with two interfaces of different timestamp resolutions and every block type that contains a
/// packet.
fn pcapng(big: bool, frame: &[u8]) -> Vec<u8> {
    let word = |value: u32| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let half = |value: u16| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let header = [&word(0x1a2b_3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat();
    let length = word(u32::try_from(frame.len()).unwrap());
    // First interface: nanoseconds with an offset of 100 seconds. Second interface: units of 2^-10 seconds.
    let offset = if big {
        100u64.to_be_bytes()
    } else {
        100u64.to_le_bytes()
    };
    let ten = [
        &half(9)[..],
        &half(1),
        &[9, 0, 0, 0],
        &half(14),
        &half(8),
        &offset,
        &half(0),
        &half(0),
    ]
    .concat();
    let two = [&half(9)[..], &half(1), &[0x8a, 0, 0, 0], &half(0), &half(0)].concat();
    let interface = |options: &[u8]| {
        block(
            1,
            &[&half(101)[..], &half(0), &word(0), options].concat(),
            big,
        )
    };
    let enhanced = |interface: u32, units: u64| {
        let (high, low) = (
            word(u32::try_from(units >> 32).unwrap()),
            word(u32::try_from(units & 0xffff_ffff).unwrap()),
        );
        block(
            6,
            &[&word(interface)[..], &high, &low, &length, &length, frame].concat(),
            big,
        )
    };
    let old = block(
        2,
        &[
            &half(1)[..],
            &half(7),
            &word(0),
            &word(512),
            &length,
            &length,
            frame,
        ]
        .concat(),
        big,
    );
    let simple = block(3, &[&length[..], frame].concat(), big);
    let statistics = block(5, &[0; 12], big);
    [
        block(0x0a0d_0d0a, &header, big),
        interface(&ten),
        enhanced(0, 5_000_000_007),
        statistics,
        interface(&two),
        enhanced(1, 2048 + 1),
        old,
        simple,
    ]
    .concat()
}

/// Timestamp, destination and payload of a datagram.
type Seen = (u64, SocketAddr, Vec<u8>);

fn read_all(bytes: &[u8]) -> (Vec<Seen>, Capture<Cursor<Vec<u8>>>) {
    let mut capture = Capture::new(Path::new("test"), Cursor::new(bytes.to_vec())).unwrap();
    let mut all = Vec::new();
    while let Some(datagram) = capture.next().unwrap() {
        all.push((
            datagram.timestamp_ns,
            datagram.destination,
            datagram.payload.to_vec(),
        ));
    }
    if !capture.is_torn() {
        assert_eq!(capture.position(), bytes.len() as u64);
    }
    (all, capture)
}

#[test]
fn pcapng_in_both_byte_orders_with_sections_is_read() {
    let frame = ipv4(17, 0, &udp(b"payload"));
    let expected: Vec<_> = [105_000_000_007, 2_000_976_562, 500_000_000, 0]
        .map(|ns| (ns, group(), b"payload".to_vec()))
        .into();
    for big in [false, true] {
        assert_eq!(
            read_all(&pcapng(big, &frame)).0,
            expected,
            "big endian: {big}"
        );
    }
    // Two concatenated files are one file with two sections.
    let (both, capture) = read_all(&[pcapng(false, &frame), pcapng(true, &frame)].concat());
    assert_eq!(both, [expected.clone(), expected].concat());
    assert_eq!(
        (
            capture.frames(),
            capture.skipped().total(),
            capture.is_torn()
        ),
        (8, 0, false)
    );
}

/// Builds a pcap file of raw IP frames with the given magic number.
fn pcap(magic: u32, frames: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut file = magic.to_le_bytes().to_vec();
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0]);
    for (seconds, fraction, frame) in frames {
        let length = u32::try_from(frame.len()).unwrap();
        for word in [*seconds, *fraction, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(*frame);
    }
    file
}

#[test]
fn pcap_in_micro_and_nanoseconds_is_read() {
    let frame = ipv4(17, 0, &udp(b"payload"));
    let other = ipv4(1, 0, &[0; 8]);
    for (magic, ns) in [(0xa1b2_c3d4, 7_000_123_000), (0xa1b2_3c4d, 7_000_000_123)] {
        let (all, capture) = read_all(&pcap(magic, &[(7, 123, &frame), (8, 0, &other)]));
        assert_eq!(all, [(ns, group(), b"payload".to_vec())]);
        assert_eq!(
            capture.skipped(),
            Skipped {
                not_udp: 1,
                ..Skipped::default()
            }
        );
    }
}

#[test]
fn pcap_truncated_file_returns_complete_packets() {
    let frame = ipv4(17, 0, &udp(b"payload"));
    let whole = pcap(0xa1b2_c3d4, &[(7, 0, &frame), (8, 0, &frame)]);
    let record = 16 + frame.len();
    for cut in 24..=whole.len() {
        let (all, capture) = read_all(&whole[..cut]);
        assert_eq!(all.len(), (cut - 24) / record);
        assert_eq!(
            capture.is_torn(),
            !(cut - 24).is_multiple_of(record),
            "{cut}"
        );
    }
}

#[test]
fn pcap_invalid_file_is_reported() {
    let error = |bytes: &[u8]| {
        Capture::new(Path::new("x.bin"), bytes)
            .err()
            .unwrap()
            .to_string()
    };
    assert!(
        error(b"\x1f\x8b\x08\x00more")
            .starts_with("x.bin is neither pcap nor pcapng (it begins with [1f, 8b, 08, 00])")
    );
    assert!(error(b"").contains("neither pcap nor pcapng (it begins with [])"));
    assert!(
        error(&pcap(0xa1b2_c3d4, &[])[..20])
            .contains("damaged after 0 frames: the file ends within its first header")
    );
    let error = Capture::open(Path::new("/nonexistent/x.pcap"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("cannot open the capture /nonexistent/x.pcap: No such file"),
        "{error}"
    );
}

#[test]
fn pcap_damaged_block_ends_with_reason() {
    let frame = ipv4(17, 0, &udp(b"payload"));
    let mut file = pcapng(false, &frame);
    let last = file.len() - 4;
    file[last] ^= 1;
    let mut capture = Capture::new(Path::new("x.pcapng"), &file[..]).unwrap();
    for _ in 0..3 {
        assert!(capture.next().unwrap().is_some());
    }
    let error = capture.next().unwrap_err().to_string();
    assert!(
        error.starts_with("the capture x.pcapng is damaged after 3 frames"),
        "{error}"
    );
    assert_eq!(capture.next().unwrap(), None);
}

proptest! {
    #[test]
    fn pcap_with_flipped_bytes_does_not_panic(big: bool, at in 0usize..600, value: u8) {
        let frame = ipv4(17, 0, &udp(b"payload"));
        for mut file in [pcapng(big, &frame), pcap(0xa1b2_c3d4, &[(7, 123, &frame)])] {
            let at = at % file.len();
            file[at] = value;
            let Ok(mut capture) = Capture::new(Path::new("x"), &file[..]) else { continue };
            while let Ok(Some(_)) = capture.next() {}
        }
    }
}

/// Returns the output of `tcpdump` with `options` for datagrams sent over the loopback interface, or `None` if
/// `tcpdump` has no permission to capture.
fn captured(options: &[&str], payloads: &[Vec<u8>]) -> Option<(Vec<u8>, SocketAddr)> {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture");
    let filter = format!("udp port {}", to.port());
    let mut tcpdump = match Command::new("tcpdump")
        .args([
            "-U",
            "-q",
            "-Z",
            "root",
            "-c",
            &payloads.len().to_string(),
            "-w",
        ])
        .arg(&file)
        .args(options)
        .arg(&filter)
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: tcpdump cannot be run: {error}");
            return None;
        }
    };
    // `tcpdump` reports that it listens before it captures. Without permission it exits.
    let mut output = String::new();
    let mut stderr = io::BufReader::new(tcpdump.stderr.take().unwrap());
    while !output.contains("listening on") {
        if io::BufRead::read_line(&mut stderr, &mut output).unwrap() == 0 {
            let _ = tcpdump.wait();
            println!("skipped: tcpdump may not capture here: {output}");
            return None;
        }
    }
    daq_testkit::loopback::stay();
    for payload in payloads {
        receiver.send_to(payload, to).unwrap();
    }
    for _ in 0..600 {
        if tcpdump.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = tcpdump.kill();
    let _ = tcpdump.wait();
    Some((std::fs::read(&file).unwrap(), to))
}

#[test]
fn pcap_of_tcpdump_is_read() {
    let payloads: Vec<Vec<u8>> = (0u8..20)
        .map(|i| vec![i; 1 + 70 * usize::from(i)])
        .collect();
    let mut report = String::new();
    for options in [&["-i", "lo"][..], &["-i", "any"], &["-i", "lo", "--nano"]] {
        let before = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let Some((file, to)) = captured(options, &payloads) else {
            return;
        };
        let (all, capture) = read_all(&file);
        let received: Vec<_> = all.iter().map(|datagram| datagram.2.clone()).collect();
        assert_eq!(received, payloads, "{options:?}");
        assert!(all.iter().all(|datagram| datagram.1 == to));
        let first = Duration::from_nanos(all[0].0);
        assert!(
            first.abs_diff(before) < Duration::from_mins(10),
            "{first:?}"
        );
        writeln!(
            report,
            "{options:?}: {} frames, {:?}",
            capture.frames(),
            capture.skipped()
        )
        .unwrap();
    }
    print!("{report}");
}

#[test]
fn pcap_packets_truncated_by_snaplen_are_counted() {
    let Some((file, _)) = captured(&["-i", "lo", "-s", "60"], &[vec![1; 10], vec![2; 1000]]) else {
        return;
    };
    let (all, capture) = read_all(&file);
    assert_eq!(
        all.iter()
            .map(|datagram| datagram.2.clone())
            .collect::<Vec<_>>(),
        [vec![1; 10]]
    );
    assert_eq!(
        capture.skipped(),
        Skipped {
            cut_short: 1,
            ..Skipped::default()
        }
    );
}
