//! Reads the files of the sinks with packages from PyPI.

use daq_testkit::{Daq, Outcome, Python, assert_counts, files, ledger, python, skip};
use serde_json::{Value, json};

/// Returns a pipeline whose source counts. Packets have 64 bytes, frames have 8 packets, and files have room for 16
/// frames and a half.
fn counting(keys: &str, faults: &str) -> String {
    format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = 64\npace = \"free\"\n\
         samples = {{ type = \"int16\", complex = true, channels = 2, rate = \"1 MHz\" }}\n{keys}\n\
         [source.adc.faults]\n{faults}\n\
         [ring.raw]\nslot = 512\nslots = 1024\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\nbuffer = \"16 KiB\"\nsegment = 8448\n\
         description = \"counters, quoted \\\"so\\\"\"\nhardware = \"none\"\n"
    )
}

/// Validates every segment with the `sigmf` package, and prints its metadata.
const VALIDATE: &str = r#"
import glob, json, os, sys
import numpy as np
import sigmf
os.chdir(sys.argv[1])
for path in sorted(glob.glob("out/*.sigmf-meta")):
    recording = sigmf.fromfile(path)
    recording.validate()
    annotations = recording.get_annotations()
    print(json.dumps({
        "path": path,
        "datatype": recording.get_global_info()["core:datatype"],
        "rate": recording.get_global_info()["core:sample_rate"],
        "samples": int(recording.sample_count),
        "shape": list(recording.read_samples().shape),
        "captures": [[c["core:sample_start"], c["core:global_index"]] for c in recording.get_captures()],
        "missing": [[a["core:sample_start"], a["core:sample_count"], 0] for a in annotations if a["core:label"] == "missing"],
        # The package finds an annotation only at the samples that it contains.
        "gaps": [[a["core:sample_start"], a["core:sample_count"], a["daq:missing_frames"]]
                 for a in annotations if a["core:label"] == "gap"
                 and a in recording.get_annotations(a["core:sample_start"])],
        "labels": sorted({a["core:label"] for a in annotations}),
    }))
"#;

fn validate(python: &Python, daq: &Daq) -> Vec<Value> {
    python.json_lines(VALIDATE, &[daq.path("")])
}

/// Returns the data of all segments, in order.
fn data(daq: &Daq) -> Vec<u8> {
    daq.data("out")
}

/// Returns `packets` packets of the counter with 64 bytes each. Packets for which `is_missing` is true contain zeros.
fn counter(packets: u64, is_missing: impl Fn(u64) -> bool) -> Vec<u8> {
    let words = (0..packets * 8).map(|word| if is_missing(word / 8) { 0 } else { word });
    words.flat_map(u64::to_le_bytes).collect()
}

fn sum(values: &[Value], key: &str, field: usize) -> u64 {
    values
        .iter()
        .flat_map(|v| v[key].as_array().unwrap())
        .map(|v| v[field].as_u64().unwrap())
        .sum()
}

fn run(daq: &Daq) -> Outcome {
    let outcome = daq.run(&[]).ok();
    assert_counts!(outcome, "sinks.disk" =>
        bytes: data(daq).len() as u64, files: files(&daq.path("out"), ".sigmf-meta").len() as u64
    );
    assert!(files(&daq.path("out"), ".partial").is_empty());
    outcome
}

#[test]
fn file_counter_across_segments_is_byte_identical() {
    let daq = Daq::new(&counting("packets = 10000", ""));
    let outcome = run(&daq);
    assert!(
        data(&daq) == counter(10_000, |_| false),
        "the files contain wrong bytes"
    );
    // 1250 frames in files of 16 frames.
    assert_eq!(outcome.count("sinks.disk.files"), 79);
}

#[test]
fn sigmf_segments_pass_validation() {
    let python = python!("sigmf", "numpy");
    let daq = Daq::new(&counting("packets = 1000", ""));
    run(&daq);
    let seen = validate(&python, &daq);
    assert_eq!(seen.len(), 8);
    // A sample of two channels has 8 bytes.
    assert_eq!(
        seen.iter()
            .map(|one| one["samples"].as_u64().unwrap())
            .sum::<u64>(),
        8000
    );
    for (i, one) in (0_u64..).zip(&seen) {
        assert_eq!(
            (&one["datatype"], one["rate"].as_f64()),
            (&"ci16_le".into(), Some(1e6))
        );
        assert_eq!(one["shape"][1], 2);
        assert_eq!(
            one["captures"],
            serde_json::json!([[0, i * 16 * 64]]),
            "{one}"
        );
        assert_eq!(one["missing"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn sigmf_gaps_are_annotated_at_their_position() {
    let python = python!("sigmf", "numpy");
    // Single packets, one frame's number of packets across the end of a segment, and damaged and late packets.
    let missing = |n: u64| matches!(n, 3 | 120..=135 | 300 | 301 | 333 | 500);
    let faults = "lose = [3, \"120..136\"]\ncorrupt_payload_at = [300, 301]\ncorrupt_header_at = [333]\nlate_at = [500]";
    let daq = Daq::new(&counting("packets = 1000", faults));
    let outcome = run(&daq);
    assert_counts!(outcome, "sources.adc.lost" => wire_gap: 18, bad_packet: 2, late: 1);
    assert!(
        data(&daq) == counter(1000, missing),
        "the files contain wrong bytes"
    );
    let seen = validate(&python, &daq);
    // A packet has 8 samples. Annotations count from the start of their segment of 1024 samples.
    let mut annotated = Vec::new();
    for (i, one) in (0_u64..).zip(&seen) {
        for span in one["missing"].as_array().unwrap() {
            let (start, count) = (span[0].as_u64().unwrap(), span[1].as_u64().unwrap());
            annotated.extend((start..start + count).map(|sample| (i * 1024 + sample) / 8));
        }
    }
    annotated.dedup();
    let wanted: Vec<_> = (0..1000).filter(|n| missing(*n)).collect();
    assert_eq!(annotated, wanted);
    assert_eq!(sum(&seen, "missing", 1), 21 * 8);
}

/// Returns the metadata of all segments in `directory`, in order.
fn metas(daq: &Daq, directory: &str) -> Vec<Value> {
    files(&daq.path(directory), ".sigmf-meta")
        .iter()
        .map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
        .collect()
}

#[test]
fn file_partial_last_frame_is_filled_without_loss() {
    // The last of the 126 frames has 3 of its 8 packets. The last file has the last 14 frames.
    let daq = Daq::new(&counting("packets = 1003", "lose = [1000]"));
    let outcome = run(&daq);
    assert_eq!(ledger::lost(&outcome.report, "adc"), 1);
    assert!(data(&daq) == counter(1008, |n| n == 1000 || n >= 1003));
    let metas = metas(&daq, "out");
    let reported: Vec<_> = metas
        .iter()
        .flat_map(|meta| meta["annotations"].as_array().unwrap())
        .map(|note| {
            let field = |key: &str| note[key].clone();
            [
                "core:sample_start",
                "core:sample_count",
                "core:label",
                "daq:cause",
            ]
            .map(field)
        })
        .collect();
    let first = |packet: u64| packet * 8 - 7 * 1024;
    assert_eq!(
        serde_json::json!(reported),
        serde_json::json!([
            [first(1000), 8, "missing", null],
            [first(1003), 40, "missing", "truncated"],
        ])
    );
    let missing = metas
        .iter()
        .map(|meta| meta["global"]["daq:missing_samples"].as_u64().unwrap());
    assert_eq!(missing.sum::<u64>(), 8);
}

#[test]
fn sigmf_spectra_record_axis_and_rate() {
    // Frames have 64 points at 1 MHz. There are two transforms per frame and four per output.
    let text = counting("packets = 1000", "")
        + "[kernel.spectrum]\nuse = \"power-spectrum\"\ninput = \"raw\"\noutput = \"spectra\"\nsize = 32\nintegrate = 4\n\
           [ring.spectra]\n\
           [sink.spectra]\ndriver = \"file\"\ninput = \"spectra\"\npath = \"spectra\"\n";
    let daq = Daq::new(&text);
    run(&daq);
    let metas = metas(&daq, "spectra");
    let [meta] = &metas[..] else {
        panic!("expected one segment: {metas:#?}")
    };
    let global = &meta["global"];
    assert_eq!(global["daq:frame_rate"], 1e6 / 64.0 / 2.0, "{meta:#}");
    assert_eq!(
        global["daq:axis"],
        serde_json::json!({"kind": "frequency", "start": -5e5, "step": 31_250.0})
    );
    assert_eq!(global.get("core:sample_rate"), None);
    assert_eq!(global["core:extensions"][0]["name"], "daq");
}

#[test]
fn sigmf_overrun_frames_are_annotated() {
    let python = python!("sigmf", "numpy");
    // The ring has only 4 frames and the source does not wait, so many packets are dropped.
    let text =
        counting("packets = 40000\nbackpressure = false", "").replace("slots = 1024", "slots = 4");
    let daq = Daq::new(&text);
    let outcome = run(&daq);
    let seen = validate(&python, &daq);
    let refused = outcome.count("rings.raw.ring_full");
    if refused == 0 {
        skip!("the ring was never full, although the source ran as fast as possible");
    }
    // Every segment records what was lost before its own frames. Losses before the first and after the last segment are
    // not recorded.
    let reported = sum(&seen, "gaps", 2);
    let first = seen[0]["captures"][0][1].as_u64().unwrap() / 64;
    let last = seen.last().unwrap();
    let last = last["captures"].as_array().unwrap().last().unwrap()[1]
        .as_u64()
        .unwrap()
        / 64;
    assert!(
        reported <= refused && reported + first <= 5000 && last < 5000,
        "{reported} of {refused}"
    );
    // The index in the stream also counts missing samples. So the value of every sample must equal its index.
    let bytes = data(&daq);
    let mut at = 0;
    for one in &seen {
        let captures = one["captures"].as_array().unwrap();
        for (i, capture) in captures.iter().enumerate() {
            let start = capture[0].as_u64().unwrap();
            let end = captures
                .get(i + 1)
                .map_or(&one["samples"], |next| &next[0])
                .as_u64()
                .unwrap();
            let index = capture[1].as_u64().unwrap();
            for sample in [start, end - 1] {
                let place = usize::try_from(at + sample * 8).unwrap();
                let word = u64::from_le_bytes(bytes[place..place + 8].try_into().unwrap());
                assert_eq!(word, index + sample - start, "{one}");
            }
        }
        at += one["samples"].as_u64().unwrap() * 8;
    }
}

#[test]
fn file_second_run_continues_numbering() {
    let daq = Daq::new(&counting("packets = 1000", ""));
    run(&daq);
    let outcome = daq.run(&[]).ok();
    assert_eq!(outcome.count("sinks.disk.files"), 8);
    let names: Vec<_> = files(&daq.path("out"), ".sigmf-meta");
    assert_eq!(names.len(), 16);
    assert!(names[15].ends_with("disk-000015.sigmf-meta"), "{names:?}");
    assert!(data(&daq) == [counter(1000, |_| false), counter(1000, |_| false)].concat());
}

#[test]
fn file_rotate_by_time_starts_new_segment() {
    let text = counting("pace = \"512 kbit/s\"", "").replace("pace = \"free\"\n", "");
    let text = text.replace("segment = 8448", "rotate = \"200 ms\"")
        + "[http]\nlisten = \"127.0.0.1:0\"\n";
    let daq = Daq::new(&text);
    let mut live = daq.spawn(&[]);
    live.wait_count("sinks.disk.files", 2);
    let outcome = live.stop().ok();
    let bytes = data(&daq);
    assert_counts!(outcome, "sinks.disk" =>
        files: files(&daq.path("out"), ".sigmf-meta").len() as u64
    );
    assert_eq!(bytes.len() as u64, outcome.count("sinks.disk.bytes"));
    // The stream ended inside the last frame, whose missing packets are filled.
    let sent = outcome.count("sources.adc.delivered");
    assert!(bytes == counter(bytes.len() as u64 / 64, |n| n >= sent));
}

/// Reads a whole store with the `zarr` package, and compares it with the counter.
const ZARR: &str = r#"
import json, os, sys
import numpy as np
import zarr
os.chdir(sys.argv[1])
missing = set(json.loads(sys.argv[2]))
store = zarr.open_group("out/stored-000000.zarr", mode="r")
frames = store["frames"][:]
rows = frames.shape[0]
# points, channels, real and imaginary
assert frames.shape[1:] == (64, 2, 2) and frames.dtype == np.int16, (frames.shape, frames.dtype)
sequence = store["sequence"][:]
assert np.array_equal(sequence, np.arange(rows)), sequence
assert (store["epoch"][:] == 1).all() and (store["length"][:] == 512).all()
present = store["present"][:]
wanted = np.array([n not in missing for n in range(rows * 8)])
assert np.array_equal(present.ravel(), wanted)
words = np.arange(rows * 64, dtype="<u8").reshape(-1, 8)
words[~wanted] = 0
assert frames.tobytes() == words.tobytes()
time = store["timestamp_ns"][:]
# A frame that is missing completely has the time that follows from the frames around it.
timed = wanted.reshape(rows, 8).any(axis=1)
clock = store["clock"].attrs
names = dict(zip(clock["flag_values"], clock["flag_meanings"].split()))
assert timed.sum() == rows - 2, timed
assert {names[int(clock)] for clock in store["clock"][:]} == {"simulated"}, names
since = time.astype(np.int64) - int(time[0])
assert np.array_equal(since, sequence.astype(np.int64) * 64_000), since
print(rows, store.attrs["state"])
"#;

#[test]
fn zarr_store_is_read_by_zarr_python() {
    let python = python!("zarr", "numpy");
    let faults = "lose = [3, \"120..136\"]\ncorrupt_payload_at = [300, 301]\nlate_at = [500]";
    let text = counting("packets = 1000", faults)
        + "[sink.stored]\ndriver = \"zarr\"\ninput = \"raw\"\npath = \"out\"\nchunk = \"5 KiB\"\n";
    let daq = Daq::new(&text);
    let outcome = run(&daq);
    assert_counts!(outcome, "sinks.stored" => frames: 125, bytes: 64_000);
    let missing: Vec<_> = [3, 300, 301, 500].into_iter().chain(120..136).collect();
    let missing = serde_json::to_string(&missing).unwrap();
    let reported = python.run(ZARR, &[daq.path("").to_str().unwrap(), &missing]);
    assert_eq!(reported, "125 complete\n");
    // The files must contain the same bytes as the store.
    assert_eq!(data(&daq).len(), 64_000);
}

/// Returns a capture of UDP packets, with Ethernet, IPv4 (without a checksum) and UDP headers.
fn pcap(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
    for word in [0x0004_0002_u32, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for payload in payloads {
        let bytes = u32::try_from(payload.len()).unwrap();
        for word in [1, 0, 42 + bytes, 42 + bytes] {
            file.extend(word.to_le_bytes());
        }
        let word = |bytes: u32| u16::try_from(bytes).unwrap().to_be_bytes();
        file.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0]);
        file.extend(word(28 + bytes));
        file.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        file.extend([0x13, 0x88, 0x13, 0x88]);
        file.extend(word(8 + bytes));
        file.extend([0, 0]);
        file.extend(payload);
    }
    file
}

/// A sensor's counter can be converted to a date if the configuration contains the counter's origin.
#[test]
fn sigmf_sensor_time_with_origin_has_datetime() {
    let python = python!("sigmf", "numpy");
    let packets: Vec<Vec<u8>> = (0_u64..8)
        .map(|n| {
            let mut packet = n.to_le_bytes().to_vec();
            // The counter is in picoseconds. Packets are 1 ms apart and begin at 2 s.
            packet.extend((2_000_000_000_000 + n * 1_000_000_000).to_le_bytes());
            packet.resize(16 + 64, 0);
            packet
        })
        .collect();
    for (origin, clock, datetime) in [
        (
            ", origin = \"2026-11-22T12:00:00+02:00\"",
            "sensor-utc",
            json!("2026-11-22T10:00:02.000000000Z"),
        ),
        ("", "sensor", Value::Null),
    ] {
        let daq = Daq::new(&format!(
            "[source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = \"a.pcap\"\nspeed = \"free\"\n\
             samples = {{ type = \"int16\", rate = \"32 kHz\" }}\n\
             [source.adc.format]\nkind = \"raw\"\nheader = 16\npayload = 64\n\
             sequence = {{ offset = 0, bytes = 8, endian = \"little\" }}\n\
             timestamp = {{ offset = 8, bytes = 8, endian = \"little\", tick = \"1 ps\"{origin} }}\n\
             [ring.raw]\nslot = 128\nslots = 16\n\
             [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\n"
        ));
        std::fs::write(daq.path("a.pcap"), pcap(&packets)).unwrap();
        let _ = daq.run(&[]).ok();
        assert_eq!(validate(&python, &daq).len(), 1);
        let meta = std::fs::read(daq.path("out/disk-000000.sigmf-meta")).unwrap();
        let meta: Value = serde_json::from_slice(&meta).unwrap();
        let capture = &meta["captures"][0];
        assert_eq!(capture["daq:clock"], clock, "{meta:#}");
        assert_eq!(capture["core:datetime"], datetime, "{meta:#}");
    }
}
