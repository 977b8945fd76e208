//! Instruments whose packets are numbered by their time, and the times of frames.

use super::{Instrument, LIDAR_START_US, big, documented, little, no_control, samples};
use daq_core::frame::{Clock, Timestamp};
use daq_testkit::loopback::{Queue, free_address};
use std::net::UdpSocket;

/// Second of the radio's frame 0 since 1970.
const START: u64 = 1_700_000_000;
/// Second of the telescope's frame 0 in its reference epoch.
const VDIF_SECOND: u64 = 10_000_000;

/// Returns the header of a DIFI packet of `words` words: type, packet class, count, UTC seconds and picoseconds.
fn difi(kind: u64, class: u64, n: u64, words: u64, seconds: u64, picoseconds: u64) -> Vec<u8> {
    of_stream(0x2a, [kind, class, n, words, seconds, picoseconds])
}

/// Returns the header of a DIFI packet of the stream `stream`, with the numbers of [`difi`].
fn of_stream(stream: u64, numbers: [u64; 6]) -> Vec<u8> {
    let [kind, class, n, words, seconds, picoseconds] = numbers;
    let first = kind << 28 | 1 << 27 | u64::from(kind == 4) << 24 | 1 << 22 | 2 << 20;
    let numbers = [
        (0, 4, first | ((n % 16) << 16) | words),
        (4, 4, stream),
        (8, 4, 0x6a_621e),
        (12, 4, class),
        (16, 4, seconds),
        (20, 8, picoseconds),
    ];
    big(28, &numbers)
}

/// Returns radios and telescopes.
pub(super) fn instruments() -> Vec<Instrument> {
    vec![
        Instrument {
            name: "DIFI radio: seconds and picoseconds, and a packet count of 4 bits",
            keys: samples("DIFI radio"),
            first: START * 32_000 / 8,
            format: documented("DIFI radio"),
            parts: 1,
            packets: 8,
            payload: |_| 1024,
            packet: |frame, _, place, payload| {
                let n = frame * 8 + place as u64;
                [
                    difi(
                        1,
                        0,
                        n,
                        7 + 256,
                        START + n / 32_000,
                        n % 32_000 * 31_250_000,
                    ),
                    payload.to_vec(),
                ]
                .concat()
            },
            port: |_| 0,
            // A context packet of 27 words.
            control: |frame| {
                let time = START + frame * 8 / 32_000;
                vec![[difi(4, 1, frame, 27, time, 0), vec![0; 80]].concat()]
            },
        },
        Instrument {
            name: "VLBI telescope: VDIF frames with a second and a number",
            keys: samples("VLBI telescope"),
            // The reference epoch 46 began on 2023-01-01, 23 years, 6 leap days and 5 leap seconds after 2000.
            first: ((23 * 365 + 6) * 86_400 + 5 + VDIF_SECOND) * 16_000 / 16,
            format: documented("VLBI telescope"),
            parts: 1,
            packets: 16,
            payload: |_| 1000,
            packet: |frame, _, place, payload| {
                let n = frame * 16 + place as u64;
                let numbers = [
                    (0, 4, VDIF_SECOND + n / 16_000),
                    (4, 4, (46 << 24) | (n % 16_000)),
                    (8, 4, (1 << 29) | ((32 + 1000) / 8)),
                    (12, 4, 7 << 26 | 3 << 16 | 0x4f4e),
                ];
                [little(32, &numbers), payload.to_vec()].concat()
            },
            port: |_| 0,
            control: no_control,
        },
        Instrument {
            name: "radio with two channels: streams whose packet counts differ",
            keys: samples("Radio with two channels"),
            first: START * 32_000 / 8,
            format: documented("Radio with two channels"),
            parts: 2,
            packets: 8,
            payload: |_| 1024,
            packet: |frame, part, place, payload| {
                let n = frame * 8 + place as u64;
                let (stream, count) = (0x2a + part as u64, n + 5 * part as u64);
                let picoseconds = n % 32_000 * 31_250_000;
                let numbers = [1, 0, count, 7 + 256, START + n / 32_000, picoseconds];
                [of_stream(stream, numbers), payload.to_vec()].concat()
            },
            port: |_| 0,
            control: no_control,
        },
        Instrument {
            name: "two polarisations: threads of VDIF",
            keys: samples("Two polarisations"),
            first: ((23 * 365 + 6) * 86_400 + 5 + VDIF_SECOND) * 16_000 / 16,
            format: documented("Two polarisations"),
            parts: 2,
            packets: 16,
            payload: |_| 1000,
            packet: |frame, part, place, payload| {
                let n = frame * 16 + place as u64;
                let numbers = [
                    (0, 4, VDIF_SECOND + n / 16_000),
                    (4, 4, (46 << 24) | (n % 16_000)),
                    (8, 4, (1 << 29) | ((32 + 1000) / 8)),
                    (12, 4, 7 << 26 | (part as u64) << 16 | 0x4f4e),
                ];
                [little(32, &numbers), payload.to_vec()].concat()
            },
            port: |_| 0,
            control: no_control,
        },
    ]
}

#[test]
fn time_of_instruments_is_that_of_their_first_packet() {
    let radio = |frame: u64| START * 1_000_000_000 + frame * 8 * 31_250;
    let telescope = |frame| (1_672_531_200 + VDIF_SECOND) * 1_000_000_000 + frame * 1_000_000;
    let lidar = |frame| (LIDAR_START_US + frame * 100_000) * 1000;
    let wanted: [(&str, &dyn Fn(u64) -> u64); 5] = [
        ("DIFI radio", &radio),
        ("radio with two channels", &radio),
        ("VLBI telescope", &telescope),
        ("two polarisations", &telescope),
        ("lidar", &lidar),
    ];
    for (name, time) in wanted {
        let all = super::instruments();
        let instrument = all
            .iter()
            .find(|instrument| instrument.name.starts_with(name))
            .unwrap();
        let port = free_address();
        let mut fixture = instrument.open(&[port], 4);
        fixture.fill_by_threads(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            for frame in 100..110 {
                for packet in instrument.frame(frame) {
                    socket.send_to(&packet.bytes, port).unwrap();
                }
                Queue::drained(port.port());
            }
        });
        let mut times = Vec::new();
        while let Some(lease) = fixture.reader.poll(1) {
            times.push(lease.frame(0).meta().timestamp);
        }
        let expected: Vec<_> = (100..110)
            .map(|frame| Timestamp {
                ns: time(frame),
                clock: Clock::SensorUtc,
            })
            .collect();
        assert_eq!(times, expected, "{name}");
    }
}
