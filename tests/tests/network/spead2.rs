//! Sends heaps with PyPI's `spead2` to daq, and checks the files. PyPI's `zarr` reads the arrays.

use daq_testkit::network::recording;
use daq_testkit::{
    Daq, Outcome, Python, assert_contains, assert_counts, files, free_udp_port, python,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

const SEND: &str = include_str!("../../python/spead2_send.py");
const READ: &str = include_str!("../../python/zarr_read.py");

/// Number of UDP payload bytes before the samples in the first packet of a heap: header, four items, and the pointer to
/// the samples.
const FIRST_HEADER: usize = 8 + 4 * 8 + 8;
/// Number of UDP payload bytes before the samples in the other packets, which do not repeat the pointer.
const HEADER: usize = FIRST_HEADER - 8;

/// The parameters of a sender.
#[derive(Clone, Copy, Debug)]
struct Stream {
    name: &'static str,
    heaps: usize,
    heap: usize,
    packet: usize,
    address_bits: u32,
    repeat: bool,
    order: &'static str,
    descriptors: &'static str,
    describe_every: usize,
}

const PLAIN: Stream = Stream {
    name: "plain",
    heaps: 24,
    heap: 60_000,
    packet: 1472,
    address_bits: 40,
    repeat: false,
    order: "plain",
    descriptors: "own",
    describe_every: 0,
};

impl Stream {
    /// Returns the payload bytes of a heap's first packet, and of its other packets.
    fn payloads(&self) -> (usize, usize) {
        // spead2 aligns data to the size of item pointers.
        let packet = self.packet / 8 * 8;
        let first = packet - FIRST_HEADER;
        (first, if self.repeat { first } else { packet - HEADER })
    }

    fn packets(&self) -> usize {
        let (first, rest) = self.payloads();
        1 + self.heap.saturating_sub(first).div_ceil(rest)
    }

    fn job(&self, port: u16, file: &Path) -> Value {
        json!({
            "port": port, "file": file, "heaps": self.heaps, "heap": self.heap, "packet": self.packet,
            "address_bits": self.address_bits, "repeat": self.repeat, "order": self.order,
            "descriptors": self.descriptors, "describe_every": self.describe_every, "rate": 30e6,
        })
    }

    /// Returns a source, its ring, and the sinks `file` and `zarr`.
    fn config(&self, port: u16) -> String {
        let Self {
            name,
            heap,
            address_bits,
            ..
        } = self;
        let (first, packet) = self.payloads();
        format!(
            "[source.{name}]\ndriver = \"udp\"\nring = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
             [source.{name}.format]\nkind = \"spead\"\nheap = {heap}\npacket = {packet}\nfirst = {first}\n\
             address_bits = {address_bits}\n\
             [ring.{name}]\nmemory = \"host\"\nslot = {heap}\nslots = 64\n\
             [sink.{name}-disk]\ndriver = \"file\"\ninput = \"{name}\"\npath = \"out\"\nbuffer = \"256 KiB\"\n\
             [sink.{name}-array]\ndriver = \"zarr\"\ninput = \"{name}\"\npath = \"out\"\nchunk = 500000\n"
        )
    }
}

/// Sends each of `streams` to its own source. Waits until `expected` packets of each stream have arrived.
fn send(python: &Python, streams: &[Stream], expected: impl Fn(&Stream) -> u64) -> (Daq, Outcome) {
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let ports: Vec<_> = streams.iter().map(|_| free_udp_port()).collect();
    for (stream, port) in streams.iter().zip(&ports) {
        text.write_str(&stream.config(*port)).unwrap();
    }
    let daq = Daq::new(&text);
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let jobs: Vec<_> = streams
        .iter()
        .zip(&ports)
        .map(|(stream, port)| stream.job(*port, &daq.path(stream.name)).to_string())
        .collect();
    python.run(SEND, &jobs);
    for stream in streams {
        // The end of the stream is sent last. If data is interleaved, it may still arrive before the last data packet.
        live.wait_count(
            &format!("sources.{}.expected", stream.name),
            expected(stream),
        );
        live.wait_count(
            &format!("sources.{}.control", stream.name),
            1 + u64::from(stream.descriptors == "own"),
        );
    }
    let outcome = live.stop().ok();
    (daq, outcome)
}

fn number(n: usize) -> u64 {
    n as u64
}

/// Returns whether packets were late. This is the case if the machine delays a sender that is written in Python for more than
/// 100 ms, because incomplete heaps before the newest one are then closed.
fn has_late_packets(outcome: &Outcome, streams: &[Stream]) -> bool {
    streams
        .iter()
        .any(|stream| outcome.report["sources"][stream.name]["lost"]["late"].is_u64())
}

#[test]
fn spead2_heaps_arrive_byte_identical() {
    let python = python!("spead2", "numpy", "zarr");
    let streams = [
        PLAIN,
        Stream {
            name: "jumbo",
            heap: 131_072,
            packet: 8972,
            ..PLAIN
        },
        // A heap of one packet, and a heap of one packet and one additional byte.
        Stream {
            name: "small",
            heap: 1000,
            ..PLAIN
        },
        Stream {
            name: "odd",
            heap: 1424 + 1,
            ..PLAIN
        },
        Stream {
            name: "repeated",
            repeat: true,
            ..PLAIN
        },
        Stream {
            name: "wide",
            address_bits: 48,
            packet: 8972,
            ..PLAIN
        },
        Stream {
            name: "shuffled",
            order: "shuffled",
            ..PLAIN
        },
        Stream {
            name: "interleaved",
            order: "interleaved",
            packet: 8972,
            ..PLAIN
        },
        // Senders whose receivers may start late repeat the descriptors.
        Stream {
            name: "described",
            describe_every: 5,
            ..PLAIN
        },
    ];
    let mut attempts = (0..3).map(|_| {
        send(&python, &streams, |stream| {
            number(stream.heaps * stream.packets())
        })
    });
    let (daq, outcome) = attempts
        .find(|(_, outcome)| !has_late_packets(outcome, &streams))
        .expect("packets that spead2 sent in time were late in every attempt");
    let mut pairs = Vec::new();
    for stream in &streams {
        let n = |key: &str| outcome.count(&format!("sources.{}.{key}", stream.name));
        let packets = number(stream.heaps * stream.packets());
        let printed = format!("{stream:?}\n{:#}\n{}", outcome.report, outcome.stderr);
        assert_eq!(
            (n("expected"), n("delivered")),
            (packets, packets),
            "{printed}"
        );
        assert_eq!(
            outcome.report["sources"][stream.name]["lost"],
            json!({}),
            "{printed}"
        );
        assert_eq!(
            (n("duplicates"), n("rejected"), n("epochs")),
            (0, 0, 1),
            "{printed}"
        );
        assert_eq!(n("bytes"), number(stream.heaps * stream.heap), "{printed}");
        let sent = std::fs::read(daq.path(stream.name)).unwrap();
        assert_eq!(sent.len(), stream.heaps * stream.heap);
        let file = recording(&daq, &format!("{}-disk", stream.name));
        assert!(
            file.data == sent,
            "the file of {stream:?} contains wrong bytes; {} bytes in the file, {} bytes sent",
            file.data.len(),
            sent.len()
        );
        assert_eq!(file.missing, [0..0; 0], "{stream:?}");
        pairs.extend([
            daq.path("out")
                .join(format!("{}-array-000000.zarr", stream.name)),
            daq.path(stream.name),
        ]);
    }
    assert_eq!(files(&daq.path("out"), ".zarr").len(), streams.len());
    let printed = python.run(READ, &pairs);
    let read: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(read.len(), streams.len());
    for (stream, read) in streams.iter().zip(read) {
        // Heap counters start with 1 for the descriptors. If descriptors are repeated, they also have every sixth
        // number.
        let again = |i: usize| i.checked_div(stream.describe_every).unwrap_or(0);
        let sequence: Vec<_> = (0..stream.heaps)
            .map(|i| number(2 + i + again(i)))
            .collect();
        let wanted = json!({ "frames": stream.heaps, "dtype": "int8", "equal": true, "sequence": sequence,
                             "present": true, "state": "complete" });
        assert_eq!(read, wanted, "{stream:?}");
    }
}

/// The first heap contains both descriptors and samples, so it is longer than the others and is not a frame. This is
/// counted and logged.
#[test]
fn spead2_samples_in_descriptor_heap_are_reported() {
    let python = python!("spead2", "numpy");
    let stream = Stream {
        name: "adc",
        descriptors: "first",
        ..PLAIN
    };
    let packets = number((stream.heaps - 1) * stream.packets());
    let (daq, outcome) = send(&python, &[stream], |_| packets);
    let n = |key: &str| outcome.count(&format!("sources.adc.{key}"));
    assert_counts!(outcome, "sources.adc" => expected: packets, delivered: packets, rejected: 0);
    // All packets of the heap, and the packet for the end of the stream, must be counted.
    assert!(
        n("control") > number(stream.packets()),
        "{:#}",
        outcome.report
    );
    let sent = std::fs::read(daq.path("adc")).unwrap();
    assert!(
        recording(&daq, "adc-disk").data == sent[stream.heap..],
        "the file contains wrong bytes"
    );
    let printed: Vec<_> = outcome
        .stderr
        .lines()
        .filter(|line| line.contains("source adc:"))
        .collect();
    assert!(
        printed
            .iter()
            .any(|line| line.contains("heap") && line.contains("control")),
        "the log must report a skipped heap: {}",
        outcome.stderr
    );
}

/// The configuration lacks the pointer in the first packet. So every packet is rejected, and the message names the keys
/// to correct.
#[test]
fn spead2_unexpected_packet_size_is_reported() {
    let python = python!("spead2", "numpy");
    let stream = Stream {
        name: "adc",
        heaps: 3,
        ..PLAIN
    };
    let port = free_udp_port();
    let (first, _) = stream.payloads();
    let text = stream
        .config(port)
        .replace(&format!("first = {first}\n"), "");
    let daq = Daq::new(&format!("[http]\nlisten = \"127.0.0.1:0\"\n{text}"));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    python.run(SEND, &[stream.job(port, &daq.path("adc")).to_string()]);
    live.wait_count("sources.adc.control", 2);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.adc" => expected: 0, rejected: number(3 * stream.packets()));
    assert_contains!(outcome.stderr => "check `packet` and `first`");
}
