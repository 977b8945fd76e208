//! Suggestions agree with what packets state about themselves: their sizes, their numbers, and the frames that they belong to.

use super::{
    Daq, PORT, Pcap, RECEIVER, Random, SENDER, assert_contains, counts, fits_terminal, inspect,
    json, jungfrau, noise, program, receives, replay, skip, vdif,
};
use std::process::Command;

/// Adds packets with the header `header` and `length` bytes of payload.
fn add(pcap: &mut Pcap, random: &mut Random, header: &[u8], length: usize) {
    let packet = [header, &noise(random, length)].concat();
    pcap.add(SENDER, RECEIVER, &packet);
}

/// Returns a header of frame number, packet number or offset, and two zero bytes.
fn frame_header(frame: u32, packet: u16) -> Vec<u8> {
    let mut header = frame.to_be_bytes().to_vec();
    header.extend(packet.to_be_bytes());
    header.extend([0, 0]);
    header
}

#[test]
fn shorter_last_packet_of_each_frame_is_received() {
    for (packets, last) in [(10_u16, 300), (2, 1000)] {
        let (mut pcap, mut random) = (Pcap::new(), Random(21));
        for frame in 0..60 {
            for packet in 0..packets {
                let length = if packet + 1 < packets { 1024 } else { last };
                add(&mut pcap, &mut random, &frame_header(frame, packet), length);
            }
        }
        let daq = pcap.daq();
        receives(&daq, 60 * u64::from(packets), 0);
        let text = inspect(&daq).ok().stdout;
        assert_contains!(text =>
            &format!("packets  = {packets}"), &format!("last     = {last}"), !"rejected"
        );
    }
}

#[test]
fn shorter_last_packet_at_an_offset_is_received() {
    let (mut pcap, mut random) = (Pcap::new(), Random(22));
    for frame in 0..60_u32 {
        for packet in 0..10_u32 {
            let header = [frame.to_be_bytes(), (packet * 1000).to_be_bytes()].concat();
            let length = if packet < 9 { 1000 } else { 300 };
            add(&mut pcap, &mut random, &header, length);
        }
    }
    let daq = pcap.daq();
    receives(&daq, 600, 0);
    assert_contains!(inspect(&daq).ok().stdout => "position = ", "packets  = 10", "last     = 300");
}

#[test]
fn packets_of_another_size_are_noted_in_the_configuration() {
    let (mut pcap, mut random) = (Pcap::new(), Random(23));
    for number in 0..600_u32 {
        let length = if number % 10 == 0 { 200 } else { 1024 };
        add(&mut pcap, &mut random, &number.to_be_bytes(), length);
    }
    let done = pcap.daq().cli(&["inspect", "capture.pcap", "--toml"]).ok();
    assert_contains!(done.stdout => "# 60 of 600 packets have another size than 1028 B; they are rejected");
}

/// Builds a packet of the JUNGFRAU module in a row and a column.
fn module(frame: u64, packet: u32, row: u16, column: u16, random: &mut Random) -> Vec<u8> {
    let mut bytes = jungfrau(frame, packet, random);
    bytes[34..36].copy_from_slice(&row.to_le_bytes());
    bytes[36..38].copy_from_slice(&column.to_le_bytes());
    bytes
}

#[test]
fn modules_that_share_a_flow_are_parts_by_row_and_column() {
    let cases = [
        (
            &[(0, 0), (1, 0)][..],
            "offset = 34, bytes = 2, endian = \"little\", values = [0, 1]",
        ),
        (&[(0, 0), (0, 1), (1, 0), (1, 1)], "part     = ["),
        (
            &[(0, 0), (0, 1), (1, 0)],
            "offset = 34, bytes = 4, endian = \"little\", values = [\n  0, 1, 65536,\n]",
        ),
    ];
    for (modules, part) in cases {
        let (mut pcap, mut random) = (Pcap::new(), Random(24));
        for frame in 0..12 {
            for packet in 0..16 {
                for (row, column) in modules {
                    let bytes = module(frame, packet, *row, *column, &mut random);
                    pcap.add(SENDER, RECEIVER, &bytes);
                }
            }
        }
        let daq = pcap.daq();
        let packets = 12 * 16 * modules.len() as u64;
        receives(&daq, packets, 0);
        assert_eq!(counts(&json(&daq)), [packets, 0, 0, 0]);
        assert_contains!(inspect(&daq).ok().stdout => part);
        let outcome = replay(&daq);
        assert_eq!(outcome.count("rings.instrument.published"), 12);
        assert_eq!(outcome.count("sources.instrument.epochs"), 1);
    }
}

/// Two senders behind one address take turns and use the same numbers, or only a number that starts again distinguishes the
/// modules of a detector.
#[test]
fn numbers_that_most_packets_repeat_are_not_suggested() {
    let (mut pcap, mut random) = (Pcap::new(), Random(25));
    for burst in 0..100_u32 {
        for number in [0, 1, 2, 3, 0, 1, 2, 3] {
            let header = (burst * 4 + number).to_be_bytes();
            add(&mut pcap, &mut random, &header, 1024);
        }
    }
    let mut modules = Pcap::new();
    for frame in 0..40_u32 {
        for place in 0..32_u8 {
            let header = [&frame.to_be_bytes()[..], &[place / 8, place % 8, 0, 0]].concat();
            add(&mut modules, &mut random, &header, 1024);
        }
    }
    for pcap in [pcap, modules] {
        let done = inspect(&pcap.daq());
        assert_eq!(done.code, 1, "{}", done.stdout);
        assert_contains!(done.stdout => "nothing recognised", !"[source");
    }
}

/// Adds packets whose header is a time of whole seconds and nanoseconds, `step` nanoseconds apart.
fn timed(step: u64) -> Pcap {
    let (mut pcap, mut random) = (Pcap::new(), Random(26));
    let start = pcap.ns;
    for n in 0..3000 {
        let ns = start + n * step;
        pcap.ns = ns;
        let parts = [ns / 1_000_000_000, ns % 1_000_000_000];
        let parts = parts.map(|part| u32::try_from(part).unwrap().to_be_bytes());
        add(&mut pcap, &mut random, &parts.concat(), 1024);
    }
    pcap
}

#[test]
fn seconds_and_nanoseconds_are_a_time_of_two_parts() {
    let daq = timed(1_000_000).daq();
    receives(&daq, 3000, 0);
    let text = inspect(&daq).ok().stdout;
    assert_contains!(text =>
        "sequence.step = 1000000", "sequence.range = [0, 999999999]",
        "timestamp.offset = 4", "timestamp.tick = \"1 ns\"",
        "timestamp.seconds = { offset = 0, bytes = 4, endian = \"big\" }"
    );
    assert_eq!(counts(&json(&daq)), [3000, 0, 0, 0]);
    assert_eq!(replay(&daq).count("sources.instrument.epochs"), 1);
    // 700,000 ns do not divide a second.
    let daq = timed(700_000).daq();
    let text = inspect(&daq).ok().stdout;
    assert_contains!(text => "grows by 700000 ticks per packet", !"[source");
    fits_terminal(&text);
    assert_contains!(daq.cli(&["inspect", "capture.pcap", "--toml"]).stdout => "# No source for");
}

#[test]
fn frames_per_second_of_vdif_are_estimated_if_the_last_frame_of_a_second_is_lost() {
    let (mut pcap, mut random) = (Pcap::new(), Random(27));
    // The header of `vdif` counts 250 frames per second.
    let start = pcap.ns;
    for n in (100..400).filter(|n| *n != 249) {
        pcap.ns = start + u64::from(n) * 4_000_000;
        let bytes = vdif(n, &mut random);
        pcap.add(SENDER, RECEIVER, &bytes);
    }
    let daq = pcap.daq();
    receives(&daq, 299, 1);
    assert_contains!(inspect(&daq).ok().stdout => "# estimated", "frames_per_second = 250");
}

/// Builds the packets of an image of 320 x 240 pixels of 16 bits, followed by `chunk` bytes.
fn image(block: u16, chunk: usize, random: &mut Random) -> Vec<Vec<u8>> {
    let packet = |format: u32, id: u32, data: &[u8]| {
        let mut bytes = vec![0, 0];
        bytes.extend(block.to_be_bytes());
        bytes.extend((format << 24 | id).to_be_bytes());
        bytes.extend(data);
        bytes
    };
    let mut leader = vec![0, 0, if chunk > 0 { 0x40 } else { 0 }, 1];
    leader.extend([0; 8]);
    leader.extend(
        [0x0110_0007_u32, 320, 240, 0, 0, 0]
            .map(u32::to_be_bytes)
            .concat(),
    );
    let pixels = noise(random, 320 * 240 * 2 + chunk);
    let mut packets = vec![packet(1, 0, &leader)];
    let mut id = 0;
    for data in pixels.chunks(1464) {
        id += 1;
        packets.push(packet(3, id, data));
    }
    packets.push(packet(2, id + 1, &[0; 8]));
    packets
}

#[test]
fn images_with_chunk_data_pass_the_check() {
    for (chunk, is_whole) in [(0, true), (40, true), (41, false)] {
        let (mut pcap, mut random) = (Pcap::new(), Random(28));
        for block in 1..6 {
            for packet in image(block, chunk, &mut random) {
                pcap.add(SENDER, RECEIVER, &packet);
            }
        }
        let daq = pcap.daq();
        receives(&daq, 5 * 105, 0);
        let text = daq.cli(&["inspect", "capture.pcap", "--toml"]).ok().stdout;
        assert_eq!(
            text.contains("\nsamples = { type = \"uint16\" }"),
            is_whole,
            "{text}"
        );
        assert_eq!(
            text.contains("other data after the pixels"),
            chunk > 0,
            "{text}"
        );
    }
}

#[test]
fn sizes_of_images_come_from_leader_and_trailer() {
    // No image is whole: the beginning of the first and the end of the second are missing.
    let (mut pcap, mut random) = (Pcap::new(), Random(29));
    let packets = [image(7, 0, &mut random), image(8, 0, &mut random)].concat();
    for packet in &packets[40..150] {
        pcap.add(SENDER, RECEIVER, packet);
    }
    let text = inspect(&pcap.daq()).ok().stdout;
    assert_contains!(text => "packets  = 105", "last     = 1344");
    // The last packet of two of three images is lost.
    let mut pcap = Pcap::new();
    for block in 1..4 {
        let mut packets = image(block, 0, &mut random);
        if block != 2 {
            packets.remove(packets.len() - 2);
        }
        for packet in &packets {
            pcap.add(SENDER, RECEIVER, packet);
        }
    }
    let text = inspect(&pcap.daq()).ok().stdout;
    assert_contains!(text => "packets  = 105", "last     = 1344");
}

/// Sends datagrams of 4008 bytes over a loopback interface whose packets have at most 1500 bytes, while `daq` inspects it. The
/// status is 75 if the interface cannot be set up, and otherwise that of `daq`.
const FRAGMENTS: &str = r#"
ip link set lo mtu 1500 up || exit 75
cat >send.py <<'END'
import itertools, os, pathlib, socket, struct, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in itertools.count():
    out.sendto(struct.pack(">Q", n) + os.urandom(4000), ("127.0.0.1", int(sys.argv[1])))
    pathlib.Path("sending").touch()
    # Limits the rate.
    time.sleep(0.002)
END
python3 send.py "$2" & sender=$!
until [ -e sending ]; do kill -0 $sender || exit 75; sleep 0.01; done
"$1" inspect --interface lo --port "$2" --for 2s --json
status=$?
kill $sender
exit $status
"#;

#[test]
fn fragments_on_an_interface_are_assembled() {
    for tool in ["ip", "unshare", "python3"] {
        if program(tool).is_none() {
            skip!("{tool} is not installed");
        }
    }
    let daq = Daq::new("");
    let mut command = Command::new("unshare");
    daq.prepare(&mut command);
    command
        .args(["--net", "sh", "-c", FRAGMENTS, "fragments"])
        .arg(daq_testkit::binary())
        .arg(PORT.to_string());
    let output = command.output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    // 69: a socket that receives all packets needs a permission.
    if matches!(output.status.code(), Some(69 | 75)) || why.contains("unshare:") {
        skip!("no network namespace, or no permission to capture in it: {why}");
    }
    assert!(output.status.success(), "{why}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report["streams"][0]["format"]["name"], "fixed header with counters",
        "{report:#}"
    );
    assert_eq!(
        report["streams"][0]["flows"][0]["sizes"][0][0], 4008,
        "{report:#}"
    );
    assert_eq!(report["streams"][0]["counts"]["lost"], 0, "{report:#}");
}
