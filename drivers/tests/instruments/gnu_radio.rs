//! GNU Radio as a sender.

use super::{Instrument, Packet, documented, no_control, samples};

/// Returns the block UDP Sink of GNU Radio.
pub(super) fn instrument() -> Instrument {
    Instrument {
        name: "GNU Radio: packet counter before the samples",
        keys: samples("GNU Radio"),
        first: 0,
        format: documented("GNU Radio"),
        parts: 1,
        packets: 16,
        payload: |_| 1464,
        packet: |frame, _, place, payload| {
            let number = frame * 16 + place as u64;
            [number.to_le_bytes().to_vec(), payload.to_vec()].concat()
        },
        port: |_| 0,
        control: no_control,
    }
}

/// GNU Radio counts packets from 1, and ends a stream with three empty datagrams.
#[test]
fn empty_datagrams_of_gnu_radio_are_control_packets() {
    let radio = instrument();
    let mut sent: Vec<_> = (0..4)
        .flat_map(|frame| radio.frame(frame))
        .skip(1)
        .collect();
    sent.extend((0..3).map(|_| Packet {
        frame: 3,
        part: 0,
        place: 0,
        bytes: Vec::new(),
    }));
    let report = radio.check(8, &sent);
    assert_eq!(
        (report.delivered, report.lost_total()),
        (63, 0),
        "{report:?}"
    );
    assert_eq!((report.control, report.rejected), (3, 0), "{report:?}");
}
