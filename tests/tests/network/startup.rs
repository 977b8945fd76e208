//! Tests sources whose sender already sends when daq starts, and still sends when daq stops. Nothing may be lost between the
//! first and the last packet that daq receives.

use crate::stream::{self, DISK, PACKETS_PER_FRAME};
use crate::veth::{self, NEAR};
use daq_testkit::network::recording;
use daq_testkit::{Daq, Outcome, assert_counts, free_udp_port, python, skip};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const PAYLOAD: usize = 256;
/// Number of the first packet. Frames do not begin at a multiple of it.
const FIRST: u64 = 1_000_003;
/// Number of frames that each run receives at least.
const FRAMES: u64 = 40;

/// A thread that sends packets until it is dropped.
struct Traffic {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    /// Calls `send` with one number after the other.
    fn start(mut send: impl FnMut(u64) + Send + 'static) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut n = FIRST;
            while !over.load(Ordering::Relaxed) {
                send(n);
                n += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns a socket that sends to `to`.
fn flow(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(to).unwrap();
    socket
}

/// Sends, and ignores that no socket is open yet.
fn send(flow: &UdpSocket, packet: &[u8]) {
    let _ = flow.send(packet);
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Starts daq while packets arrive, waits for [`FRAMES`] frames, and stops daq. Checks that nothing was lost.
fn assert_no_loss(daq: &Daq) -> Outcome {
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.delivered", FRAMES * PACKETS_PER_FRAME as u64);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.adc" => duplicates: 0, rejected: 0, incomplete: 0, epochs: 1);
    assert_eq!(outcome.report["sources"]["adc"]["lost"], json!({}));
    outcome
}

/// Runs a source `udp` with packets of [`stream`], and checks each byte. Only the first and the last frame may lack packets, and
/// only at the start and at the end.
fn assert_stream(keys: &str) {
    let daq = Daq::new(&stream::config(keys, PAYLOAD, 512, DISK));
    let outcome = assert_no_loss(&daq);
    let recording = recording(&daq, "disk");
    let bytes = recording.data.len();
    let [(range, first)] = &recording.runs[..] else {
        panic!("{:?}", recording.runs);
    };
    assert_eq!(*range, 0..bytes);
    let mut filled = 0;
    for missing in &recording.missing {
        assert!(missing.start == 0 || missing.end == bytes, "{missing:?}");
        filled += missing.len();
    }
    let delivered = outcome.count("sources.adc.delivered");
    assert_eq!(
        bytes - filled,
        usize::try_from(delivered).unwrap() * PAYLOAD
    );
    for (i, received) in recording.data.chunks_exact(PAYLOAD).enumerate() {
        let n = first / PAYLOAD as u64 + i as u64;
        let is_filled = recording
            .missing
            .iter()
            .any(|missing| missing.contains(&(i * PAYLOAD)));
        assert!(
            is_filled || received == &stream::packet(n, PAYLOAD)[8..],
            "packet {n}"
        );
    }
}

#[test]
fn udp_stream_in_progress_is_received_without_loss() {
    let port = free_udp_port();
    let flow = flow(local(port));
    let _traffic = Traffic::start(move |n| send(&flow, &stream::packet(n, PAYLOAD)));
    assert_stream(&format!("driver = \"udp\"\nlisten = \"127.0.0.1:{port}\""));
}

/// The senders of three parts are at different packets of a frame.
#[test]
fn parts_in_progress_are_received_without_loss() {
    const PACKETS: u64 = 4;
    let port = free_udp_port();
    let flow = flow(local(port));
    let _traffic = Traffic::start(move |n| {
        for part in 0..3 {
            let n = n + part;
            let mut packet = (n / PACKETS).to_be_bytes().to_vec();
            packet.extend((n % PACKETS).to_be_bytes());
            packet.extend(part.to_be_bytes());
            packet.resize(24 + PAYLOAD, 1);
            send(&flow, &packet);
        }
    });
    let slot = 3 * PACKETS * PAYLOAD as u64;
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n\
         [source.adc.format]\nkind = \"raw\"\nheader = 24\npayload = {PAYLOAD}\nframe = {{ offset = 0, bytes = 8 }}\n\
         packet = {{ offset = 8, bytes = 8 }}\npackets = {PACKETS}\npart = {{ offset = 16, bytes = 8, values = [0, 1, 2] }}\n\
         [ring.raw]\nmemory = \"host\"\nslot = {slot}\nslots = 512\n[sink.disk]\ninput = \"raw\"\n{DISK}\n"
    ));
    let outcome = assert_no_loss(&daq);
    let parts = &outcome.report["sources"]["adc"]["parts"];
    for part in ["0", "1", "2"] {
        assert_eq!(parts[part]["lost"], 0, "{parts:#}");
    }
}

/// Ends a program by the end of its standard input.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Sizes of heaps and packets are detected from a stream of which daq has not received the descriptors.
#[test]
fn spead2_stream_in_progress_is_received_without_loss() {
    const SEND: &str = include_str!("../../python/spead2_traffic.py");
    const HEAP: usize = 4096;
    let python = python!("spead2", "numpy");
    let port = free_udp_port();
    let job = json!({ "port": port, "heap": HEAP, "first": 700 }).to_string();
    let mut sender = Command::new(python.path())
        .args(["-c", SEND, &job])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = sender.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    let _sender = Program(sender);
    assert_eq!(line, "sending\n");
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n[source.adc.format]\nkind = \"spead\"\n\
         [ring.raw]\nmemory = \"host\"\nslot = {HEAP}\nslots = 512\n[sink.disk]\ninput = \"raw\"\n{DISK}\n"
    ));
    assert_no_loss(&daq);
    let recording = recording(&daq, "disk");
    let (last, heaps) = (
        recording.data.len() / HEAP - 1,
        recording.data.chunks_exact(HEAP),
    );
    for (i, heap) in heaps.enumerate() {
        let is_cut = i == 0 || i == last;
        assert!(
            is_cut || heap.iter().all(|byte| *byte == heap[0]),
            "heap {i}"
        );
    }
}

#[test]
fn xdp_stream_in_progress_is_received_without_loss() {
    let far = match veth::wire(1, 1500) {
        Ok(far) => far,
        Err(why) => skip!("cannot create virtual interfaces: {why}"),
    };
    let flow = far.run(|| {
        let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
        socket.connect("10.77.0.1:4950").unwrap();
        socket
    });
    let _traffic = Traffic::start(move |n| send(&flow, &stream::packet(n, PAYLOAD)));
    let keys = format!("driver = \"xdp\"\ninterface = \"{NEAR}\"\nlisten = \"10.77.0.1:4950\"");
    assert_stream(&keys);
}
