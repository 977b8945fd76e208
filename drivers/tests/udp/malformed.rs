//! Random malformed, lost, repeated and late packets: the ledger and every byte equal those of a window that gets the packets
//! one by one.

use super::*;

/// What happens to a packet between sender and receiver.
#[derive(Clone, Copy, Debug)]
enum Disposition {
    Sent,
    Lost(u64),
    Twice,
    Delayed(usize),
    /// A packet of another size is sent instead.
    Cut(usize),
    Garbage(usize),
    /// The sequence numbers jump forward by this number.
    Jump(u64),
    Restart,
    Empty,
}

fn disposition() -> impl Strategy<Value = Disposition> {
    prop_oneof![
        60 => Just(Disposition::Sent),
        2 => (1_u64..4).prop_map(Disposition::Lost),
        1 => (1_u64..200).prop_map(Disposition::Lost),
        2 => Just(Disposition::Twice),
        2 => (1_usize..60).prop_map(Disposition::Delayed),
        1 => (1_usize..100).prop_map(Disposition::Cut),
        1 => (1_usize..100).prop_map(Disposition::Garbage),
        1 => (100_000_u64..100_000_000).prop_map(Disposition::Jump),
        1 => Just(Disposition::Restart),
        1 => Just(Disposition::Empty),
    ]
}

fn schedule(format: &Format, first: u64, dispositions: &[Disposition]) -> Vec<Sent> {
    let mut sequence = first;
    let mut packets: Vec<(usize, usize, Sent)> = Vec::new();
    for (i, disposition) in dispositions.iter().enumerate() {
        let packet = datagram(format, sequence);
        let mut push = |at: usize, packet: Sent| packets.push((at, packets.len(), packet));
        match *disposition {
            Disposition::Sent => push(i, packet),
            Disposition::Lost(more) => sequence += more - 1,
            Disposition::Twice => {
                push(i, packet.clone());
                push(i, packet);
            }
            Disposition::Delayed(by) => push(i + by, packet),
            Disposition::Cut(by) => push(
                i,
                packet[..packet.len() - by.min(packet.len() - 1)].to_vec(),
            ),
            Disposition::Garbage(bytes) => push(i, vec![0xab; bytes]),
            Disposition::Jump(by) => sequence += by,
            Disposition::Restart => sequence = first,
            Disposition::Empty => push(i, Vec::new()),
        }
        sequence += 1;
    }
    packets.sort_by_key(|(at, order, _)| (*at, *order));
    packets.into_iter().map(|(_, _, packet)| packet).collect()
}

/// Returns 64 packets in order, at least two frames, then `dispositions` without those that start an epoch. At the
/// first packets of an epoch, the result depends on where batches end.
fn after_a_clean_start(dispositions: &[Disposition]) -> Vec<Disposition> {
    let is_restart = |disposition: &&Disposition| {
        matches!(disposition, Disposition::Jump(_) | Disposition::Restart)
    };
    let rest = dispositions
        .iter()
        .filter(|disposition| !is_restart(disposition));
    std::iter::repeat_n(&Disposition::Sent, 64)
        .chain(rest)
        .copied()
        .collect()
}

fn same_as_one_by_one(
    text: &str,
    port: SocketAddr,
    format: &Format,
    slot: usize,
    packets: &[Sent],
    offload: bool,
) {
    let mut received = open(text, slot, 1024);
    // The reference receives nothing, so any port can be used.
    let other = text.replace(&port.to_string(), &free_address().to_string());
    let mut expected = open(&other, slot, 1024);
    deliver(&mut received, port, packets, offload);
    reference(&mut expected, format, packets);
    for fixture in [&mut received, &mut expected] {
        fixture.windows[0].finish();
    }
    let (left, right) = (
        without_causes(received.report()),
        without_causes(expected.report()),
    );
    assert_eq!(left, right);
    assert_eq!(left.expected, left.delivered + left.lost_total());
    let frames = (verify(&mut received), verify(&mut expected));
    for (left, right) in frames.0.iter().zip(&frames.1) {
        assert_eq!((left.0, left.1, &left.3), (right.0, right.1, &right.3));
    }
    assert!(
        frames.0 == frames.1,
        "{} frames, {} expected",
        frames.0.len(),
        frames.1.len()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// With a window that holds all packets and a start without faults, each packet's disposition depends only on the
    /// order. The ledger and every byte must equal those of a window that gets the packets one by one. Tests copied
    /// packets (small) and predicted packet slots (large), with wide numbers and with numbers that wrap.
    #[test]
    fn malformed_packets_are_counted_exactly(
        dispositions in prop::collection::vec(disposition(), 1..500),
        large: bool,
        offload: bool,
        narrow: bool,
        packets_per_frame in 1_usize..20,
    ) {
        let payload = if large { 5000 } else { 100 };
        // A frame must end where the number wraps. Otherwise frames would contain other packets if counting starts
        // after the wrap.
        let (width, packets_per_frame) = if narrow { (16, packets_per_frame.next_power_of_two()) } else { (64, packets_per_frame) };
        let format = raw(payload, width);
        let port = free_address();
        let text = raw_text(&format!("\"{port}\""), payload, width, "window = 1000\nmax_gap = 1000\nresync_after = 3");
        let first = if narrow { 65_500 / packets_per_frame * packets_per_frame } else { 0 };
        let packets = schedule(&format, first as u64, &after_a_clean_start(&dispositions));
        same_as_one_by_one(&text, port, &format, payload * packets_per_frame, &packets, offload);
    }

    #[test]
    fn malformed_heaps_are_counted_exactly(
        dispositions in prop::collection::vec(disposition(), 1..500),
        large: bool,
        offload: bool,
        first_less in prop_oneof![Just(0_usize), Just(24)],
        tail in 0_usize..3000,
    ) {
        let rest = if large { 5000 } else { 500 };
        let layout = PacketLayout { unit_bytes: rest * 5 + tail, first: rest - first_less, rest };
        let format = Format::Spead(Spead::new(40, layout, 1));
        let port = free_address();
        let text = spead_text(port, layout, 1000);
        let packets = schedule(&format, 0, &after_a_clean_start(&dispositions));
        same_as_one_by_one(&text, port, &format, layout.unit_bytes, &packets, offload);
    }

    /// With a small window, the result depends on where batches end. Every packet must still be counted once, and every
    /// byte must be in its packet slot.
    #[test]
    fn malformed_packets_in_small_window_are_counted_exactly(
        dispositions in prop::collection::vec(disposition(), 1..500),
        large: bool,
        offload: bool,
        window in 1_usize..6,
        packets_per_frame in 1_usize..20,
        slots in prop_oneof![Just(8_usize), Just(1024)],
    ) {
        let payload = if large { 5000 } else { 100 };
        let format = raw(payload, 64);
        let port = free_address();
        let more = format!("window = {window}\nmax_gap = 1000\nresync_after = 3");
        let packets = schedule(&format, 0, &dispositions);
        let mut fixture = open(&raw_text(&format!("\"{port}\""), payload, 64, &more), payload * packets_per_frame, slots);
        deliver(&mut fixture, port, &packets, offload);
        fixture.windows[0].finish();
        let report = fixture.report();
        prop_assert_eq!((report.pending, report.expected), (0, report.delivered + report.lost_total()));
        let of = |cause| report.lost.get(cause).copied().unwrap_or(0);
        let counted = report.delivered + of("ring_full") + of("late") + report.duplicates + report.rejected + report.control + report.before_start;
        prop_assert_eq!(counted, packets.len() as u64, "{:?}", &report);
        let frames = verify(&mut fixture);
        let present = frames.iter().flat_map(|frame| &frame.3).filter(|present| **present).count();
        prop_assert_eq!(present as u64, report.delivered);
        prop_assert!(frames.is_sorted_by_key(|frame| (frame.1, frame.0)));
    }
}
