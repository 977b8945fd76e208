#![allow(
    clippy::cast_possible_truncation,
    reason = "the fields of packets have this size"
)]

use super::*;
use daq_core::layout::Order;
use daq_core::units::{Frequency, UtcTime};

/// A frame, built as the VDIF specification describes it.
#[derive(Clone, Copy, Debug)]
struct Sent {
    invalid: bool,
    legacy: bool,
    seconds: u32,
    epoch: u32,
    frame: u32,
    thread: u32,
    station: u32,
    /// Bytes of the data array.
    data: u32,
}

const SENT: Sent = Sent {
    invalid: false,
    legacy: false,
    seconds: 0,
    epoch: 46,
    frame: 0,
    thread: 3,
    station: 0x5066,
    data: 64,
};

impl Sent {
    fn bytes(self) -> Vec<u8> {
        let header = if self.legacy { 16 } else { 32 };
        let mut words = vec![
            u32::from(self.invalid) * 0x8000_0000
                + u32::from(self.legacy) * 0x4000_0000
                + self.seconds,
            self.epoch * 0x0100_0000 + self.frame,
            0x2000_0000 + (header + self.data) / 8,
            // 8 bits per sample, real.
            7 * 0x0400_0000 + self.thread * 0x0001_0000 + self.station,
        ];
        words.resize(header as usize / 4, 0);
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.resize(bytes.len() + self.data as usize, 9);
        bytes
    }
}

fn format(keys: &str) -> Format {
    let text = format!("payload = 64\nthread = 3\nframes_per_second = 1000\n{keys}");
    toml::from_str::<VdifConfig>(&text)
        .unwrap()
        .build()
        .unwrap()
}

fn data(format: &mut Format, bytes: &[u8]) -> Packet {
    match format.parse(bytes) {
        Ok(Parsed::Data(packet)) => packet,
        other => panic!("{other:?}"),
    }
}

/// Returns the UTC time of a frame in seconds since 1970, and its number.
fn time(sent: Sent) -> (u64, u64) {
    let packet = data(&mut format(""), &sent.bytes());
    (packet.timestamp.unwrap() / 1_000_000_000, packet.unit)
}

#[test]
fn invalid_frames_are_counted_whatever_their_number_is() {
    let junk = Sent {
        invalid: true,
        seconds: 0x2a_5a77,
        frame: 0x9a_3f11,
        ..SENT
    };
    assert_eq!(format("").parse(&junk.bytes()), Err(INVALID));
    // Also if thread and size are junk.
    let mut bytes = junk.bytes();
    bytes[8..16].fill(0xa5);
    assert_eq!(format("").parse(&bytes), Err(INVALID));
}

#[test]
fn shorter_seconds_than_configured_are_found() {
    let ends = |per_second: [u64; 8]| {
        let mut seconds = LastSeconds::default();
        let mut found = Vec::new();
        for (second, frames) in per_second.into_iter().enumerate() {
            for frame in 0..frames {
                found.extend(seconds.observe(second as u64 + 9, frame));
            }
        }
        found
    };
    assert_eq!(ends([2, 5, 5, 5, 5, 5, 5, 5]), [5, 5]);
    assert!(ends([5, 4, 4, 4, 4, 5, 4, 5]).is_empty());
}

#[test]
fn header_states_number_time_and_payload() {
    for (keys, before) in [("", 0), ("vtp = true", 8)] {
        for legacy in [false, true] {
            let sent = Sent {
                seconds: 7,
                frame: 999,
                legacy,
                ..SENT
            };
            let bytes = [vec![1; before], sent.bytes()].concat();
            let mut format = format(keys);
            assert_eq!(format.packet_len(&bytes), Some(bytes.len()));
            let packet = data(&mut format, &bytes);
            assert_eq!(bytes[packet.payload.clone()], [9; 64]);
            assert_eq!(format.header_len(0), packet.payload.start);
            // 2023-01-01T00:00:07.999Z.
            assert_eq!(packet.timestamp, Some(1_672_531_207_999_000_000));
            let next = Sent {
                seconds: 8,
                legacy,
                ..SENT
            };
            let bytes = [vec![1; before], next.bytes()].concat();
            assert_eq!(data(&mut format, &bytes).unit, packet.unit + 1);
        }
    }
}

#[test]
fn reference_epochs_are_half_years() {
    let start = |epoch| time(Sent { epoch, ..SENT }).0;
    assert_eq!(start(0), 946_684_800);
    // 2000-07-01, 2001-01-01, 2016-07-01, 2031-07-01.
    assert_eq!(
        [start(1), start(2), start(33), start(63)],
        [962_409_600, 978_307_200, 1_467_331_200, 1_940_630_400]
    );
}

#[test]
fn numbers_continue_across_reference_epochs_and_leap_seconds() {
    // The second half of 2016 has 184 days and a leap second.
    let half = 184 * 86_400;
    let at = |epoch, seconds| {
        time(Sent {
            seconds,
            epoch,
            ..SENT
        })
    };
    let (before, number) = at(33, half - 1);
    assert_eq!(before, 1_483_228_799);
    // 23:59:60 and 00:00:00, by the seconds of the old and of the new epoch.
    assert_eq!(at(33, half), (1_483_228_800, number + 1000));
    assert_eq!(at(33, half + 1), (1_483_228_800, number + 2000));
    assert_eq!(at(34, 0), (1_483_228_800, number + 2000));
    assert_eq!(at(33, half + 2).0, 1_483_228_801);
    // 2023-07-01 without a leap second.
    assert_eq!(at(46, 181 * 86_400), at(47, 0));
}

#[test]
fn frames_of_others_and_invalid_frames_are_rejected() {
    let mut format = format("station = 0x5066");
    let counts = Counts::in_memory(&format.facts().counts);
    format.start("adc", &counts);
    let mut reason = |sent: Sent| format.parse(&sent.bytes()).unwrap_err().name();
    assert_eq!(reason(Sent { thread: 2, ..SENT }), "other_stream");
    assert_eq!(reason(Sent { station: 1, ..SENT }), "other_stream");
    assert_eq!(
        reason(Sent {
            invalid: true,
            ..SENT
        }),
        "invalid"
    );
    assert_eq!(
        reason(Sent {
            frame: 1000,
            ..SENT
        }),
        "frame_number"
    );
    assert_eq!(reason(Sent { data: 72, ..SENT }), "payload_size");
    assert_eq!(
        reason(Sent {
            legacy: true,
            data: 72,
            ..SENT
        }),
        "payload_size"
    );
    assert_eq!(
        counts.read().counters(),
        [("invalid", 1), ("other_thread", 1)]
    );
    let bytes = SENT.bytes();
    for length in 1..bytes.len() {
        assert_eq!(format.parse(&bytes[..length]).unwrap_err().name(), "short");
    }
    assert_eq!(
        format
            .parse(&[&bytes[..], &[0]].concat())
            .unwrap_err()
            .name(),
        "long"
    );
}

#[test]
fn frames_per_second_follow_from_the_sample_rate() {
    let with = |rate: Option<f64>| {
        let config: VdifConfig = toml::from_str("payload = 8000").unwrap();
        let mut format = config.build().unwrap();
        format.use_samples(&Samples {
            rate: rate.map(Frequency),
            ..Samples::default()
        })?;
        let mut bytes = Vec::new();
        format.build(1_000_000 * 4000 + 17, 0, None, &[0; 8000], &mut bytes);
        Ok::<_, Problem>(data(&mut format, &bytes))
    };
    let packet = with(Some(32e6)).unwrap();
    assert_eq!(packet.unit, 1_000_000 * 4000 + 17);
    let ns = (946_684_800 + 1_000_000) * 1_000_000_000 + 17 * 250_000;
    assert_eq!(packet.timestamp, Some(ns));
    for rate in [None, Some(32e6 + 1.0)] {
        let problem = with(rate).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some("format.frames_per_second"));
    }
}

#[test]
fn invalid_keys_are_reported_together() {
    let config: VdifConfig =
        toml::from_str("payload = 63\nthread = 1024\nframes_per_second = 0").unwrap();
    let keys: Vec<_> = config
        .build()
        .unwrap_err()
        .into_iter()
        .filter_map(|found| found.key)
        .collect();
    assert_eq!(
        keys,
        [
            "format.payload",
            "format.thread",
            "format.frames_per_second"
        ]
    );
}

#[test]
fn baseband_finds_the_same_time_and_fields() {
    let python = daq_testkit::python!("baseband");
    let script = "
import io, sys, astropy.units as u
from baseband import vdif
for line in sys.argv[1:]:
    h = vdif.VDIFHeader.fromfile(io.BytesIO(bytes.fromhex(line)))
    t = h.get_time(frame_rate=1000 * u.Hz)
    print(t.isot, h['thread_id'], h['station_id'], h['frame_nr'], h.payload_nbytes)
";
    let half = 184 * 86_400;
    // The leap second of 2016 is left out: its time has no number of nanoseconds since 1970 of its own.
    let times = [
        (46, 7, 999),
        (33, half - 1, 5),
        (34, 0, 0),
        (0, 0, 0),
        (53, 5, 1),
        (47, 10_000_000, 17),
    ];
    let sent = times.map(|(epoch, seconds, frame)| Sent {
        seconds,
        epoch,
        frame,
        ..SENT
    });
    let hex = sent.map(|sent| daq_testkit::hex(&sent.bytes()));
    let output = python.run(script, &hex);
    let expected: Vec<_> = sent
        .iter()
        .map(|sent| {
            let packet = data(&mut format(""), &sent.bytes());
            let time = UtcTime(packet.timestamp.unwrap()).to_string();
            let time = time.trim_end_matches('Z');
            // baseband prints nine digits after the second.
            let time = if time.contains('.') {
                format!("{time:0<29}")
            } else {
                format!("{time}.000000000")
            };
            format!("{time} 3 {} {} 64", 0x5066, sent.frame)
        })
        .collect();
    assert_eq!(output.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn vdif_is_not_sent() {
    let frames = OutgoingFrames {
        layout: Samples::default().layout(64).unwrap(),
        frame_bytes: 64,
        is_continuous: true,
        max_packet: 1472,
    };
    let problem = format("").for_sending(&frames).unwrap_err();
    assert_eq!(problem.key.as_deref(), Some("format.kind"));
}

#[test]
fn threads_are_parts_of_frames() {
    let keys = "payload = 64\nthread = [7, 3]\nframes_per_second = 1000";
    let config: VdifConfig = toml::from_str(keys).unwrap();
    let mut format = config.build().unwrap();
    let samples = |channels, order| Samples {
        channels,
        order,
        rate: Some(Frequency(64e3)),
        ..Samples::default()
    };
    for wrong in [samples(2, Order::Interleaved), samples(3, Order::Planar)] {
        let problem = format.use_samples(&wrong).unwrap_err();
        assert!(problem.message.contains("2 streams"), "{problem}");
    }
    format.use_samples(&samples(2, Order::Planar)).unwrap();
    assert_eq!(
        (format.facts().parts, format.facts().part_names),
        (2, vec!["7".to_owned(), "3".to_owned()])
    );
    // 1000 frames of 64 bytes and two threads have less than 1 MiB, and a second has 1000.
    let numbering = format.facts().numbering;
    assert_eq!(numbering.packets_per_unit, 2000);
    let sent = |thread, seconds, frame| Sent {
        seconds,
        frame,
        thread,
        ..SENT
    };
    let place = |format: &mut Format, sent: Sent| {
        let packet = data(format, &sent.bytes());
        (packet.unit, packet.sub, packet.timestamp.unwrap())
    };
    let (unit, sub, time) = place(&mut format, sent(7, 5, 0));
    assert_eq!((sub, time % 1_000_000_000), (0, 0));
    assert_eq!(place(&mut format, sent(3, 5, 999)), (unit, 1999, time));
    assert_eq!(
        place(&mut format, sent(7, 6, 1)),
        (unit + 1, 1, time + 1_000_000_000)
    );
    let other = format.parse(&sent(4, 5, 0).bytes());
    assert!(
        matches!(other, Err(Reject::OtherStream { found: 4, .. })),
        "{other:?}"
    );
}

#[test]
fn frame_that_begins_in_the_second_before_has_its_time() {
    let keys = "payload = 64\nthread = 3\npackets = 7\nframes_per_second = 1000";
    let config: VdifConfig = toml::from_str(keys).unwrap();
    let mut format = config.build().unwrap();
    format.use_samples(&Samples::default()).unwrap();
    let mut units = std::collections::BTreeMap::<_, Vec<_>>::new();
    for n in 0..2000_u32 {
        let (seconds, frame) = (n / 1000, n % 1000);
        let packet = data(
            &mut format,
            &Sent {
                seconds,
                frame,
                ..SENT
            }
            .bytes(),
        );
        units
            .entry(packet.unit)
            .or_default()
            .push(packet.timestamp.unwrap());
    }
    let first = *units.values().next().unwrap().first().unwrap();
    for (i, times) in units.values().enumerate() {
        assert!(times.iter().all(|time| *time == times[0]), "{times:?}");
        assert_eq!(times[0], first + i as u64 * 7_000_000);
    }
}
