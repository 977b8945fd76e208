//! Measures how fast `udp` receives over the loopback interface, compared with a baseline loop that only receives.
//!
//! `cargo run --release -p daq-drivers --example udp_bench [SECONDS] [PACKET…]`, packet sizes in bytes
//!
//! `RATE=20` limits the sender to 20 Gbit/s. (A receiver that is overrun spends its time on gaps, so compare the CPU
//! time of both at a rate without loss.) `PLAIN=1` sends without segmentation offload. `SHOW=1` prints the ledger.
//!
//! The sender runs on core 0 and the receiver on core 1. Packets have 16 bytes of header, and the sender uses
//! segmentation offload. The baseline, `baseline`, calls recvmmsg with UDP_GRO and receives 64 KiB per message directly
//! into a ring of the same size, without reading the data. Loss is the number of packets sent but not received.
//!
//! `sequence` and `parts` receive frames of 64 packets in smaller slots: by a sequence number, and by the numbers of the frame, of
//! the packet and of one of four parts. The packets are the same.

use daq_core::entry::Registry;
use daq_core::ledger::SourceReport;
use daq_drivers::packet::Format;
use daq_drivers::packet::{Endian, Field, Raw};
use daq_drivers::sys::recv::{MESSAGE_BYTES, RecvBatch};
use daq_drivers::sys::send::Sender;
use daq_drivers::sys::socket::{Options, Timestamps, UdpSocket};
use daq_testkit::loopback::free_address;
use daq_testkit::source::{SourceFixture, new_fixture, spec_in};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const HEADER: usize = 16;
const SLOTS: usize = 64;
const SLOT: usize = 1 << 20;

/// Frames of packets with one sequence number.
const SEQUENCE: &str = "sequence = { offset = 0, bytes = 8 }";
/// Number of packets of a frame with parts.
const FRAME: usize = 64;
/// The same number read as frame, part and packet.
const PARTS: &str = "frame = { offset = 0, bytes = 8, shift = 6 }\npackets = 16\n\
                     packet = { offset = 7, bytes = 1, bits = 4 }\npart = { offset = 7, bytes = 1, shift = 4, bits = 2, count = 4 }";

/// Sends numbered packets until `stop` is set. Returns their number.
fn send(to: SocketAddr, packet: usize, offload: bool, stop: &AtomicBool) -> u64 {
    let mut sender = Sender::open(to, offload, None).expect("a socket");
    let format = Raw::new(
        HEADER,
        packet - HEADER,
        0,
        Field::new(0, 8, Endian::Big, 0, 64),
        1,
    );
    let per_call = (65_507 / packet).min(64) * 8;
    let mut bytes = Vec::new();
    for _ in 0..per_call {
        Format::Raw(format.clone()).build(0, 0, None, &vec![7; packet - HEADER], &mut bytes);
    }
    let mut sent = 0;
    let start = Instant::now();
    let bits_per_ns = std::env::var("RATE")
        .ok()
        .and_then(|rate| rate.parse::<f64>().ok());
    while !stop.load(Ordering::Relaxed) {
        for packet in bytes.chunks_mut(packet) {
            format.write_header(sent, None, packet);
            sent += 1;
        }
        if let Some(bits_per_ns) = bits_per_ns {
            let due = (sent * packet as u64 * 8) as f64 / bits_per_ns;
            while (start.elapsed().as_nanos() as f64) < due {
                std::hint::spin_loop();
            }
        }
        sender
            .send_packets(&bytes, packet)
            .expect("the loopback interface takes it");
    }
    sent
}

struct Outcome {
    packets: u64,
    bytes: u64,
    sent: u64,
    cpu: Duration,
    wall: Duration,
}

impl Outcome {
    fn show(&self, name: &str, packet: usize) {
        let gbit = self.bytes as f64 * 8.0 / self.wall.as_secs_f64() / 1e9;
        let ns = self.cpu.as_nanos() as f64 / self.packets as f64;
        let lost = 100.0 * (1.0 - self.packets as f64 / self.sent as f64);
        println!(
            "{packet:>6} {name:<8} {gbit:>7.2} Gbit/s  {ns:>7.1} ns of CPU a packet  {lost:>6.2} % lost"
        );
    }
}

fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).expect("below a second"),
    )
}

/// Runs `receive` while a sender sends, for the given time.
fn beside_sender(
    name: &str,
    to: SocketAddr,
    packet: usize,
    length: Duration,
    receive: impl FnOnce(&AtomicBool) -> (u64, u64, Duration) + Send,
) -> Outcome {
    let stop = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let receiver = std::thread::Builder::new()
            .name(format!("rx-{name}"))
            .spawn_scoped(scope, || {
                let _ = daq_core::thread::pin(1);
                receive(&stop)
            });
        let receiver = receiver.expect("a thread");
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        scope.spawn(|| {
            let _ = daq_core::thread::pin(0);
            let offload = std::env::var_os("PLAIN").is_none();
            sent.store(send(to, packet, offload, &stop), Ordering::Relaxed);
        });
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let wall = start.elapsed();
        let (packets, bytes, cpu) = receiver.join().expect("no panic");
        Outcome {
            packets,
            bytes,
            sent: 0,
            cpu,
            wall,
        }
    })
    .with_sent(sent.load(Ordering::Relaxed))
}

impl Outcome {
    fn with_sent(self, sent: u64) -> Self {
        Self { sent, ..self }
    }
}

fn baseline(packet: usize, length: Duration) -> Outcome {
    let options = Options {
        receive_buffer: 64 << 20,
        coalesce: true,
        timestamps: Timestamps::Software,
        ..Options::default()
    };
    let socket = UdpSocket::open(free_address(), &options).expect("a free port");
    beside_sender("baseline", socket.local(), packet, length, |stop| {
        let per_batch = 8;
        let mut ring = vec![1_u8; SLOT * SLOTS];
        let mut batch = RecvBatch::scatter(per_batch, 1);
        let (mut packets, mut bytes, mut next) = (0, 0, 0);
        let start = cpu();
        while !stop.load(Ordering::Relaxed) {
            let memory = &mut ring[next..][..per_batch * MESSAGE_BYTES];
            let got = batch.recv_into(&socket, memory).expect("a socket");
            next = (next + memory.len()) % (SLOT * SLOTS);
            for message in 0..got {
                let about = batch.message(message);
                packets += about.packets() as u64;
                bytes += about.bytes as u64;
            }
            if got == 0 {
                let _ = socket.wait(Duration::from_millis(10));
            }
        }
        (packets, bytes, cpu().saturating_sub(start))
    })
}

/// Receives packets with the keys `numbers` into frames of at most `slot` bytes.
fn udp(packet: usize, length: Duration, numbers: &str, slot: usize) -> Outcome {
    let port = free_address();
    let text = format!(
        "[source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"{port}\"\n[source.adc.format]\nkind = \"raw\"\n\
         header = {HEADER}\npayload = {}\n{numbers}\n",
        packet - HEADER
    );
    let registry = Registry::default().with_all(daq_drivers::packet::FORMATS);
    let spec = spec_in(&registry, &daq_drivers::udp::ENTRY, &text)
        .unwrap_or_else(|errors| panic!("{errors}"));
    let mut fixture = new_fixture(&*spec, slot, SLOTS * SLOT / slot).expect("a free port");
    let ledger = fixture.ledger.clone();
    let outcome = beside_sender("udp", port, packet, length, move |stop| {
        let SourceFixture {
            fillers,
            windows,
            reader,
            ledger,
            ..
        } = &mut fixture;
        let (filler, window) = (&mut fillers[0], &mut windows[0]);
        let start = cpu();
        while !stop.load(Ordering::Relaxed) {
            filler
                .fill(window, Duration::from_millis(10))
                .expect("a socket");
            window.tick(Instant::now());
            // The minimum work of a reader: it frees the slots.
            drop(reader.poll(16));
        }
        let used = cpu().saturating_sub(start);
        window.finish();
        let report = SourceReport::of(ledger);
        (report.delivered, report.delivered * packet as u64, used)
    });
    if std::env::var_os("SHOW").is_some() {
        println!("{:?}", SourceReport::of(&ledger));
    }
    outcome
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2.0);
    let mut packets: Vec<usize> = arguments.filter_map(|text| text.parse().ok()).collect();
    if packets.is_empty() {
        packets = vec![1472, 8972];
    }
    let length = Duration::from_secs_f64(seconds);
    for packet in packets {
        for _ in 0..2 {
            baseline(packet, length).show("baseline", packet);
            udp(packet, length, SEQUENCE, SLOT).show("udp", packet);
            let frame = FRAME * (packet - HEADER);
            udp(packet, length, SEQUENCE, frame).show("sequence", packet);
            udp(packet, length, PARTS, frame).show("parts", packet);
        }
    }
}
