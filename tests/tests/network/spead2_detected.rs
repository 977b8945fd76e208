//! Tests SPEAD heaps whose sizes are detected. The sender is `configs/send_spead.py`, which uses PyPI's spead2 with its
//! defaults.

use daq_testkit::{
    Daq, Outcome, Python, Simulated, assert_contains, assert_counts, free_udp_port, python,
    repository,
};
use serde_json::{Value, json};
use std::fmt::Write;

/// A sender, and the source that receives from this sender.
#[derive(Clone, Copy)]
struct Stream {
    name: &'static str,
    heaps: usize,
    heap: usize,
    /// Additional arguments for the sender.
    sender: &'static str,
    /// Additional keys for the source's format.
    format: &'static str,
    /// Additional keys for the source.
    source: &'static str,
    /// The ring's `memory` key.
    memory: &'static str,
    /// The detected sizes, as logged.
    detected: &'static str,
}

const PLAIN: Stream = Stream {
    name: "plain",
    heaps: 30,
    heap: 60_000,
    sender: "",
    format: "",
    source: "",
    memory: "host",
    detected: "packet = 1432 B, first = 1424 B, counter step = 1, SPEAD-64-40",
};

impl Stream {
    fn config(&self, port: u16) -> String {
        let Self {
            name,
            format,
            source,
            memory,
            ..
        } = self;
        format!(
            "[source.{name}]\ndriver = \"udp\"\nring = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n{source}\n\
             [source.{name}.format]\nkind = \"spead\"\n{format}\n\
             [ring.{name}]\nmemory = \"{memory}\"\nslot = 65536\nslots = 256\n\
             [sink.{name}-disk]\ndriver = \"file\"\ninput = \"{name}\"\npath = \"out\"\nbuffer = \"256 KiB\"\n"
        )
    }
}

fn script() -> String {
    std::fs::read_to_string(repository().join("configs/send_spead.py")).unwrap()
}

fn send(python: &Python, daq: &Daq, stream: &Stream, port: u16) {
    let Stream {
        name,
        heaps,
        heap,
        sender,
        ..
    } = stream;
    let file = daq.path(name);
    let common = format!("--port {port} --heaps {heaps} --heap {heap} --pause 0.002 {sender}");
    let mut arguments: Vec<_> = common.split_whitespace().map(str::to_owned).collect();
    arguments.extend(["--save".to_owned(), file.display().to_string()]);
    python.run(&script(), &arguments);
}

/// Runs all `streams` at the same time, each with its own source, and checks the received data.
fn run(python: &Python, streams: &[Stream]) -> Daq {
    run_with(python, streams, "", |daq| daq)
}

/// Same as [`run`], with additional `sections`, in the directory that `prepare` sets up.
fn run_with(
    python: &Python,
    streams: &[Stream],
    sections: &str,
    prepare: impl FnOnce(Daq) -> Daq,
) -> Daq {
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let ports: Vec<_> = streams.iter().map(|_| free_udp_port()).collect();
    for (stream, port) in streams.iter().zip(&ports) {
        text.write_str(&stream.config(*port)).unwrap();
    }
    let daq = prepare(Daq::new(&(text + sections)));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    std::thread::scope(|scope| {
        for (stream, port) in streams.iter().zip(&ports) {
            scope.spawn(|| send(python, &daq, stream, *port));
        }
    });
    for stream in streams {
        let frames = format!("sinks.{}-disk.frames", stream.name);
        live.wait_count(&frames, stream.heaps as u64);
    }
    let outcome = live.stop().ok();
    for stream in streams {
        let sink = format!("{}-disk", stream.name);
        check(&daq, &outcome, stream, &sink, stream.name, "out");
    }
    daq
}

fn check(daq: &Daq, outcome: &Outcome, stream: &Stream, sink: &str, source: &str, out: &str) {
    let n = |key: &str| outcome.count(&format!("sources.{source}.{key}"));
    let message = format!("{}:\n{:#}\n{}", stream.name, outcome.report, outcome.stderr);
    let sent = std::fs::read(daq.path(stream.name)).unwrap();
    assert_eq!(sent.len(), stream.heaps * stream.heap, "{message}");
    assert_counts!(outcome, format!("sources.{source}") =>
        rejected: 0, duplicates: 0, epochs: 1, expected: n("delivered"); "{}", stream.name
    );
    assert_eq!(
        outcome.report["sources"][source]["lost"],
        json!({}),
        "{message}"
    );
    assert_eq!(n("bytes"), sent.len() as u64, "{message}");
    let file = daq_testkit::network::Recording::read(&daq.path(out), sink);
    assert!(
        file.data == sent,
        "the file of {message} contains wrong bytes"
    );
    assert_eq!(file.missing, [0..0; 0], "{message}");
    let detected = format!("source {source}: detected heap = ");
    let line = outcome.stderr.lines().find(|line| line.contains(&detected));
    assert!(
        line.is_some_and(|line| line.contains(stream.detected)),
        "{message}"
    );
}

#[test]
fn readme_example_with_spead2_defaults_is_byte_identical() {
    let python = python!("spead2", "numpy");
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let config = std::fs::read_to_string(repository().join("configs/spead.toml")).unwrap();
    let example = config.split_once("[source").unwrap().1;
    assert!(
        readme.contains(example),
        "README.md must contain the example of configs/spead.toml"
    );
    let daq = Daq::new(&config);
    let port = free_udp_port();
    let listen = format!("source.correlator.listen=127.0.0.1:{port}");
    let mut live = daq.spawn(&["--set", &listen, "--set", "http.listen=127.0.0.1:0"]);
    live.wait_ready();
    let stream = Stream {
        heaps: 20,
        heap: 1 << 20,
        sender: "--pause 0.05",
        ..PLAIN
    };
    send(&python, &daq, &stream, port);
    live.wait_count("sinks.disk.frames", stream.heaps as u64);
    let outcome = live.stop().ok();
    check(&daq, &outcome, &stream, "disk", "correlator", "heaps");
}

#[test]
fn spead2_flavours_and_descriptors_arrive_byte_identical() {
    let python = python!("spead2", "numpy");
    let streams = [
        PLAIN,
        Stream {
            name: "wide",
            sender: "--address-bits 48",
            detected: "SPEAD-64-48",
            ..PLAIN
        },
        Stream {
            name: "every",
            sender: "--descriptors every",
            detected: "first = 1244 B, counter step = 1",
            ..PLAIN
        },
        Stream {
            name: "third",
            sender: "--descriptors third",
            ..PLAIN
        },
        Stream {
            name: "own",
            sender: "--descriptors own",
            ..PLAIN
        },
        Stream {
            name: "none",
            sender: "--descriptors none",
            ..PLAIN
        },
        Stream {
            name: "jumbo",
            sender: "--packet 8972",
            detected: "packet = 8928 B, first = 8920 B",
            ..PLAIN
        },
        // A heap of one packet, and a heap of one packet and one additional byte.
        Stream {
            name: "small",
            heap: 1000,
            heaps: 200,
            detected: "counter step = 1",
            ..PLAIN
        },
        Stream {
            name: "odd",
            heap: 1426,
            heaps: 200,
            detected: "counter step = 1",
            ..PLAIN
        },
    ];
    run(&python, &streams);
}

#[test]
fn spead2_counter_steps_with_given_keys_are_combined() {
    let python = python!("spead2", "numpy");
    let streams = [
        Stream {
            name: "two",
            sender: "--step 2 --descriptors own",
            detected: "counter step = 2",
            ..PLAIN
        },
        Stream {
            name: "eight",
            sender: "--first 5 --step 8",
            detected: "counter step = 8",
            ..PLAIN
        },
        Stream {
            name: "given",
            format: "heap = 60000",
            ..PLAIN
        },
        Stream {
            name: "sockets",
            source: "sockets = 3",
            ..PLAIN
        },
        // The stream ends before enough heaps have arrived to detect the sizes with certainty.
        Stream {
            name: "brief",
            heaps: 2,
            ..PLAIN
        },
    ];
    run(&python, &streams);
}

#[test]
fn detected_heaps_are_written_to_zarr() {
    let python = python!("spead2", "numpy", "zarr");
    // Heaps are as long as the ring's slots and as the rows of the array.
    let stream = Stream {
        name: "array",
        heap: 65_536,
        ..PLAIN
    };
    let sink =
        "[sink.zarr]\ndriver = \"zarr\"\ninput = \"array\"\npath = \"out\"\nchunk = 500000\n";
    let daq = run_with(&python, &[stream], sink, |daq| daq);
    let pair = [daq.path("out/zarr-000000.zarr"), daq.path("array")];
    let read: Value =
        serde_json::from_str(&python.run(include_str!("../../python/zarr_read.py"), &pair))
            .unwrap();
    let sequence: Vec<_> = (1..=stream.heaps).collect();
    let wanted = json!({ "frames": stream.heaps, "dtype": "int8", "equal": true, "sequence": sequence,
                         "present": true, "state": "complete" });
    assert_eq!(read, wanted);
}

#[test]
fn detected_heaps_in_gpu_ring_are_byte_identical() {
    let python = python!("spead2", "numpy");
    let simulated = Simulated::new("");
    let stream = Stream {
        name: "gpu",
        memory: "cuda:0",
        ..PLAIN
    };
    run_with(&python, &[stream], "", |daq| simulated.on(daq));
    let copied = &simulated.report()["copied"];
    let bytes = (stream.heaps * stream.heap) as u64;
    for direction in ["host_to_device", "device_to_host"] {
        assert!(copied[direction].as_u64().unwrap() >= bytes, "{copied:#}");
    }
}

#[test]
fn heap_longer_than_slot_is_rejected_with_fix() {
    let python = python!("spead2", "numpy");
    let stream = Stream {
        name: "long",
        heap: 70_000,
        ..PLAIN
    };
    let port = free_udp_port();
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n{}",
        stream.config(port)
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    send(&python, &daq, &stream, port);
    live.wait_count("sources.long.rejected", 30 * 49);
    let outcome = live.stop();
    assert_eq!(outcome.count("sources.long.expected"), 0);
    assert_contains!(outcome.stderr => "set `slot = ");
}
