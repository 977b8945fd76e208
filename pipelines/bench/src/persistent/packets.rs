//! Measures a whole pipeline with a network source: latency from sending a packet to its result.

use super::fixture::{Bench, RESULT_TIMEOUT};
use crate::BenchError;
use crate::figures::times;
use daq_diagnostics::fixture::{RunningPipeline, failed};
use std::net::UdpSocket;
use std::time::Instant;

/// Maximum number of warm-up packets, which are not measured.
const WARM_UP: usize = 200;

/// The protocol of the packets, one packet per frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Source `udp`: a sequence number precedes the payload.
    Udp,
    /// Source `hsb`: a RoCE v2 write that ends a frame and contains the frame's metadata.
    Hsb,
}

/// Number of pages. A sensor writes successive frames to successive pages.
const PAGES: u64 = 64;
/// Alignment of a sensor's pages and packet payloads in bytes. The metadata has the same size.
const ALIGNMENT: usize = 128;
/// Size of the headers of a write in bytes: base transport, remote address and immediate.
const HEADER_BYTES: usize = 12 + 16 + 4;
/// Size of the checksum at the end of a packet in bytes.
const CHECKSUM_BYTES: usize = 4;
/// Queue pair and remote key of a sensor's packets.
const QUEUE_PAIR: u32 = 7;
const KEY: u32 = 9;

impl Protocol {
    pub(super) const ALL: [Self; 2] = [Self::Udp, Self::Hsb];

    /// Returns the name of the driver.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Hsb => "hsb",
        }
    }

    /// Returns the source's keys for frames of `frame` bytes.
    fn keys(self, frame: usize) -> String {
        match self {
            Self::Udp => format!(
                r#"format = {{ kind = "raw", header = "8 B", payload = "{frame} B", sequence = {{ offset = 0, bytes = 8, endian = "big" }} }}"#
            ),
            Self::Hsb => format!(
                "control = false\nqueue_pair = {QUEUE_PAIR}\nrkey = {KEY}\npages = {PAGES}\nframe = \"{frame} B\"\npacket = \"{} B\"",
                frame.next_multiple_of(ALIGNMENT)
            ),
        }
    }

    /// Returns an empty packet for a frame of `frame` bytes.
    fn packet(self, frame: usize) -> Vec<u8> {
        match self {
            Self::Udp => vec![0; 8 + frame],
            Self::Hsb => vec![0; HEADER_BYTES + Self::write(frame) + CHECKSUM_BYTES],
        }
    }

    /// Returns the number of bytes that a sensor writes for a frame of `frame` bytes.
    const fn write(frame: usize) -> usize {
        frame.next_multiple_of(ALIGNMENT) + ALIGNMENT
    }

    /// Writes the `i`-th packet for frames of `frame` bytes to `packet`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "packet numbers may wrap, and the sizes are small"
    )]
    fn number(self, packet: &mut [u8], i: u64, frame: usize) {
        match self {
            Self::Udp => packet[..8].copy_from_slice(&i.to_be_bytes()),
            Self::Hsb => {
                let (psn, page) = (i as u32 & 0xff_ffff, i % PAGES);
                let write = Self::write(frame);
                let mut at = 0;
                let mut put = |bytes: &[u8]| {
                    packet[at..at + bytes.len()].copy_from_slice(bytes);
                    at += bytes.len();
                };
                // Opcode 0x2b is UC RDMA WRITE Only with Immediate.
                put(&[0x2b, 0, 0xff, 0xff]);
                put(&QUEUE_PAIR.to_be_bytes());
                put(&psn.to_be_bytes());
                put(&(page * write as u64).to_be_bytes());
                put(&KEY.to_be_bytes());
                put(&(write as u32).to_be_bytes());
                put(&(page as u32 | psn << 12).to_be_bytes());
                let metadata = HEADER_BYTES + write - ALIGNMENT;
                // The metadata contains the packet number, the frame size and the frame number. All other fields are
                // zero.
                packet[metadata + 4..metadata + 8].copy_from_slice(&psn.to_be_bytes());
                packet[metadata + 24..metadata + 32].copy_from_slice(&(frame as u64).to_be_bytes());
                packet[metadata + 34..metadata + 36].copy_from_slice(&(i as u16).to_be_bytes());
            }
        }
    }
}

/// Returns the configuration of a pipeline in which every thread polls.
fn text(proto: Protocol, port: u16, frame: usize, device: u32) -> String {
    format!(
        r#"
[source.wire]
driver  = "{driver}"
listen  = "127.0.0.1:{port}"
ring    = "raw"
wait    = "busy"
samples = {{ type = "int32" }}
{keys}

[ring.raw]
memory = "cuda:{device}"
slot   = "{frame} B"
slots  = 1024

[kernel.touch]
file     = "touch.cu"
input    = "raw"
output   = "sums"
dispatch = "persistent"
wait     = "busy"
threads  = {threads}
blocks   = 1
frame    = {{ points = 1 }}

[ring.sums]
slots = 1024

[sink.nothing]
driver = "null"
input  = "sums"
"#,
        driver = proto.name(),
        keys = proto.keys(frame),
        threads = super::fixture::threads(frame),
    )
}

impl Bench<'_> {
    /// Sends `packets` packets of `frame` bytes over loopback, one after another. Returns the microseconds from each
    /// send call until the result is in the output ring.
    pub(super) fn packets(
        &self,
        proto: Protocol,
        frame: usize,
        packets: usize,
    ) -> Result<Vec<f64>, BenchError> {
        // The port was free when it was selected, so it is very likely still free.
        let port = UdpSocket::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .map_err(failed)?
            .port();
        let text = text(proto, port, frame, self.device.ordinal());
        let pipeline = self.environment.start(&text)?;
        let times = self
            .cores
            .first(|| send(&pipeline, proto, port, frame, packets));
        pipeline.end()?;
        times
    }
}

fn send(
    pipeline: &RunningPipeline,
    proto: Protocol,
    port: u16,
    frame: usize,
    packets: usize,
) -> Result<Vec<f64>, BenchError> {
    let io = |error: std::io::Error| failed(format!("cannot send packets: {error}"));
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
    socket.connect(("127.0.0.1", port)).map_err(io)?;
    let mut packet = proto.packet(frame);
    let mut numbers = 0..;
    times(WARM_UP.min(packets), packets, || {
        let i = numbers.next().unwrap_or(u64::MAX);
        proto.number(&mut packet, i, frame);
        let start = Instant::now();
        socket.send(&packet).map_err(io)?;
        let mut polls = 0_u32;
        while pipeline.published("sums") <= i {
            std::hint::spin_loop();
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(1 << 10)
                && (start.elapsed() > RESULT_TIMEOUT || pipeline.is_over())
            {
                return Err(failed(format!(
                    "no result for packet {i} within {:?}",
                    start.elapsed()
                )));
            }
        }
        Ok(())
    })
}
