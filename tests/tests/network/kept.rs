//! Tests fields of packet headers that frames keep, from the packets to files that Python packages read.

use daq_testkit::loopback::Queue;
use daq_testkit::{
    Daq, Live, Python, Simulated, assert_contains, free_tcp_port, free_udp_port, python,
};
use serde_json::{Value, json};
use std::net::UdpSocket;

const SEND: &str = include_str!("../../python/spead2_kept.py");
const READ: &str = include_str!("../../python/kept_read.py");

/// Bytes of a heap.
const HEAP: usize = 8192;
const HEAPS: u64 = 12;

/// Packets of one frame, and the bytes of a packet's header and payload.
const PACKETS: u64 = 4;
const HEADER: usize = 24;
const PAYLOAD: usize = 64;

fn read(python: &Python, path: &std::path::Path) -> Value {
    serde_json::from_str(&python.run(READ, &[path])).unwrap()
}

fn items() -> &'static str {
    "keep = [{ item = 0x4101, name = \"feng_id\" }, { item = 0x1600, name = \"ticks\" }]"
}

fn spead(port: u16, keep: &str, memory: &str) -> String {
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.feng]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n\
         [source.feng.format]\nkind = \"spead\"\n{keep}\n\
         [ring.raw]\nmemory = \"{memory}\"\nslot = {HEAP}\nslots = 64\n\
         [sink.zarr]\ndriver = \"zarr\"\ninput = \"raw\"\npath = \"out\"\nchunk = 30000\n"
    )
}

fn send_heaps(python: &Python, live: &mut Live, port: u16) {
    live.wait_ready();
    python.run(
        SEND,
        &[json!({ "port": port, "heaps": HEAPS, "heap": HEAP }).to_string()],
    );
    live.wait_count("sinks.zarr.frames", HEAPS);
}

fn assert_items(python: &Python, daq: &Daq) {
    let expected = json!({
        "feng_id": (0..HEAPS).map(|i| i % 4).collect::<Vec<_>>(),
        "ticks": (0..HEAPS).map(|i| 1000 + 4096 * i).collect::<Vec<_>>(),
        "kept": vec![3; usize::try_from(HEAPS).unwrap()],
        "sequence": (1..=HEAPS).collect::<Vec<_>>(),
        "type": ["uint64", "uint64"],
    });
    assert_eq!(read(python, &daq.path("out/zarr-000000.zarr")), expected);
}

#[test]
fn spead2_items_are_columns_for_zarr_python() {
    let python = python!("spead2", "numpy", "zarr");
    let port = free_udp_port();
    let daq = Daq::new(&spead(port, items(), "host"));
    let mut live = daq.spawn(&[]);
    send_heaps(&python, &mut live, port);
    let status: Value = serde_json::from_str(&live.get("/status").body).unwrap();
    assert_eq!(
        status["plan"]["rings"][0]["kept"],
        json!(["feng_id", "ticks"])
    );
    let log = live.stop().ok().stderr;
    assert!(!log.contains("kept field"), "{log}");
    assert_items(&python, &daq);
}

#[test]
fn kept_fields_travel_through_gpu_ring_and_kernel() {
    let python = python!("spead2", "numpy", "zarr");
    let simulated = Simulated::new("").with_compiler();
    let port = free_udp_port();
    let text = spead(port, items(), "cuda:0").replace("input = \"raw\"", "input = \"copy\"")
        + "[kernel.copy]\nfile = \"copy.cu\"\ninput = \"raw\"\noutput = \"copy\"\n[ring.copy]\nslots = 64\n";
    let daq = simulated.on(Daq::new(&text));
    std::fs::write(daq.path("copy.cu"), "void on_frame() {}").unwrap();
    let mut live = daq.spawn(&[]);
    send_heaps(&python, &mut live, port);
    let _ = live.stop().ok();
    assert_items(&python, &daq);
}

/// Returns a receiver on `port` that stores the fields `keep`.
fn receiver(port: u16, mode: &str, keep: &str) -> Daq {
    Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.link]\ndriver = \"stream\"\ntransport = \"rdma\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\nmode = \"{mode}\"\n\
         nics = [\"emulated\"]\npackets_per_frame = 4096\nkeep = {keep}\n\
         [ring.raw]\nmemory = \"host\"\nslot = {HEAP}\nslots = 64\n\
         [sink.zarr]\ndriver = \"zarr\"\ninput = \"raw\"\npath = \"out\"\nchunk = 30000\n"
    ))
}

/// Returns the source of `spead` with a sink that sends its frames to `port`.
fn sender(udp: u16, port: u16, mode: &str) -> Daq {
    let source = spead(udp, items(), "host");
    let (source, _) = source.split_once("[sink.zarr]").unwrap();
    Daq::new(&format!(
        "{source}[sink.zarr]\ndriver = \"stream\"\ntransport = \"rdma\"\ninput = \"raw\"\nto = \"127.0.0.1:{port}\"\nmode = \"{mode}\"\n\
         nics = [\"emulated\"]\nguarantee = true\n"
    ))
}

#[test]
fn kept_fields_are_transferred_over_rdma() {
    let python = python!("spead2", "numpy", "zarr");
    for mode in ["write", "send"] {
        let (udp, port) = (free_udp_port(), free_tcp_port());
        let far = receiver(port, mode, "[\"feng_id\", \"ticks\"]");
        let mut there = far.spawn(&[]);
        there.wait_ready();
        let near = sender(udp, port, mode);
        let mut here = near.spawn(&[]);
        send_heaps(&python, &mut here, udp);
        there.wait_count("sinks.zarr.frames", HEAPS);
        let _ = here.stop().ok();
        let _ = there.stop().ok();
        assert_items(&python, &far);
    }
}

#[test]
fn rdma_receiver_rejects_other_names_of_kept_fields() {
    let (udp, port) = (free_udp_port(), free_tcp_port());
    let far = receiver(port, "write", "[\"ticks\", \"feng_id\"]");
    let mut there = far.spawn(&[]);
    there.wait_ready();
    let near = sender(udp, port, "write");
    let here = near.spawn(&[]);
    there.wait_log("whose frames keep 2 fields");
    drop((here, there));
}

#[test]
fn absent_item_is_logged_once_with_fix() {
    let python = python!("spead2", "numpy", "zarr");
    let port = free_udp_port();
    let keep =
        "keep = [{ item = 0x4101, name = \"feng_id\" }, { item = 0x4103, name = \"frequency\" }]";
    let daq = Daq::new(&spead(port, keep, "host"));
    let mut live = daq.spawn(&[]);
    send_heaps(&python, &mut live, port);
    let log = live.stop().ok().stderr;
    let lines = log
        .lines()
        .filter(|line| line.contains("lack a kept field"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert_contains!(lines[0] => "no item 0x4103", "set `item` of `keep`");
    let kept = read(&python, &daq.path("out/zarr-000000.zarr"));
    assert_eq!(
        kept["kept"],
        json!(vec![1; usize::try_from(HEAPS).unwrap()])
    );
    assert_eq!(
        kept["frequency"],
        json!(vec![0; usize::try_from(HEAPS).unwrap()])
    );
}

/// Returns packet `n`, whose header contains the number of a bunch and of a module.
fn packet(n: u64) -> Vec<u8> {
    let frame = n / PACKETS;
    let mut packet = n.to_le_bytes().to_vec();
    packet.extend((u64::MAX - frame).to_le_bytes());
    packet.extend([0, 0, 7, 1, 0, 0, 0, 0]);
    packet.resize(HEADER + PAYLOAD, u8::try_from(n % 251).unwrap());
    packet
}

#[test]
fn raw_fields_survive_lost_packets_sigmf_and_replay() {
    let python = python!("sigmf", "numpy", "zarr");
    const FRAMES: u64 = 20;
    let port = free_udp_port();
    let slot = usize::try_from(PACKETS).unwrap() * PAYLOAD;
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\nwindow = 4\n\
         [source.adc.format]\nkind = \"raw\"\nheader = {HEADER}\npayload = {PAYLOAD}\n\
         sequence = {{ offset = 0, bytes = 8, endian = \"little\" }}\n\
         keep = [{{ offset = 8, bytes = 8, endian = \"little\", name = \"bunch_id\" }}, {{ offset = 18, bytes = 1, name = \"module\" }}]\n\
         [ring.raw]\nmemory = \"host\"\nslot = {slot}\nslots = 64\n\
         [sink.raw]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\n"
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // Of every third frame, the first packet is lost.
    let sent: Vec<_> = (0..FRAMES * PACKETS)
        .filter(|n| n % (3 * PACKETS) != PACKETS)
        .collect();
    for n in &sent {
        socket.send_to(&packet(*n), ("127.0.0.1", port)).unwrap();
    }
    Queue::drained(port);
    let _ = live.stop().ok();
    let expected: Vec<_> = (0..FRAMES)
        .map(|frame| json!([frame * slot as u64, slot, { "bunch_id": u64::MAX - frame, "module": 7 }]))
        .collect();
    let meta = daq.path("out/raw-000000.sigmf-meta");
    assert_eq!(read(&python, &meta), json!(expected));

    let again = Daq::new(&format!(
        "[source.again]\ndriver = \"replay\"\nring = \"raw\"\npath = {meta:?}\nspeed = \"free\"\n\
         [ring.raw]\nmemory = \"host\"\nslots = 64\n\
         [sink.zarr]\ndriver = \"zarr\"\ninput = \"raw\"\npath = \"out\"\n"
    ));
    let _ = again.run(&[]).ok();
    let kept = read(&python, &again.path("out/zarr-000000.zarr"));
    let bunches: Vec<_> = (0..FRAMES).map(|frame| u64::MAX - frame).collect();
    assert_eq!(kept["bunch_id"], json!(bunches));
    assert_eq!(kept["kept"], json!(vec![3; bunches.len()]));
}

#[test]
fn wrong_kept_fields_are_all_reported() {
    let port = free_udp_port();
    let keep = "keep = [{ item = 0x4101, name = \"clock\" }, { item = 3, name = \"a\" }, { item = 0x4101, name = \"a\" }]";
    let daq = Daq::new(&spead(port, keep, "host"));
    let output = daq.cli(&["check", "--no-hardware", "daq.toml"]);
    assert_contains!(output.stderr =>
        "`clock` is already a name in the metadata of all frames",
        "the item 0x3 is reserved by SPEAD",
        "two kept fields have the name `a`"
    );
}
