#![allow(
    clippy::cast_possible_truncation,
    reason = "the fields of packets have this size"
)]

use super::*;
use proptest::prelude::*;

/// The timestamps of a sender that counts its samples exactly.
#[derive(Clone, Copy, Debug)]
struct Sender {
    /// Samples in 1,000,000 s.
    rate: u64,
    per_packet: u64,
    start: u64,
    /// Added before the division, in units of 1/1000 of the divisor: 0 truncates, 500 rounds, 999 rounds up.
    rounding: u128,
}

impl Sender {
    const fn samples(&self) -> Samples {
        Samples {
            per_packet: self.per_packet,
            per_million_seconds: self.rate,
            tolerance: None,
        }
    }

    /// Returns the timestamp in picoseconds of packet `n` after `start` seconds.
    fn picoseconds(&self, n: u64) -> Stamp {
        let samples = u128::from(n) * u128::from(self.per_packet);
        let rate = u128::from(self.rate);
        let ps = (samples * 1_000_000_000_000_000_000 + rate * self.rounding / 1000) / rate;
        Stamp {
            reference: Seconds::Utc,
            unit: Fraction::Picoseconds,
            seconds: u32::try_from(u128::from(self.start) + ps / 1_000_000_000_000).unwrap(),
            fraction: u64::try_from(ps % 1_000_000_000_000).unwrap(),
        }
    }

    /// Returns the timestamp in samples of packet `n`.
    fn in_samples(&self, n: u64) -> Stamp {
        let (samples, rate) = (n * self.per_packet, self.rate / 1_000_000);
        Stamp {
            reference: Seconds::Gps,
            unit: Fraction::Samples,
            seconds: u32::try_from(self.start + samples / rate).unwrap(),
            fraction: samples % rate,
        }
    }
}

const RADIO: Sender = Sender {
    rate: 30_720_000_000_000,
    per_packet: 1000,
    start: 1_700_000_000,
    rounding: 0,
};

fn count(n: u64) -> u8 {
    (n % 16) as u8
}

/// Returns the number of packet `n`.
fn number(grids: &mut Grids, stamp: Stamp, n: u64) -> Numbered {
    grids.number(&stamp, count(n)).unwrap()
}

#[test]
fn losses_of_16_packets_are_seen_for_each_kind_of_timestamp() {
    let free = |n: u64| Stamp {
        unit: Fraction::FreeRunning,
        fraction: (u64::MAX - 5000).wrapping_add(n * RADIO.per_packet),
        ..Stamp::default()
    };
    let picoseconds = |n| RADIO.picoseconds(n);
    let in_samples = |n| RADIO.in_samples(n);
    for stamp in [&free as &dyn Fn(u64) -> Stamp, &picoseconds, &in_samples] {
        let mut grids = Grids::new(RADIO.samples());
        let first = number(&mut grids, stamp(0), 0).number;
        // The second begins at packet 30720.
        for n in [1, 2, 18, 50, 49, 51, 30_719, 30_720, 30_736, 96_000] {
            let numbered = number(&mut grids, stamp(n), n);
            assert_eq!(numbered.number - first, n, "{:?}", stamp(n));
            assert!(numbered.agrees && !numbered.is_off_grid);
            assert_eq!(number(&mut grids, stamp(n), n), numbered, "parsed again");
        }
    }
}

proptest! {
    #[test]
    fn any_rate_and_rounding_number_packets_exactly(
        rate in 1_000_000u64..1_000_000_000_000_000, per_packet in 1u64..20_000, start in 0u64..4_000_000_000,
        rounding in 0u128..1000, steps in proptest::collection::vec(1u64..70_000, 1..50),
    ) {
        // Rates of 1 Hz to 1 GHz, in µHz. The packets must not last longer than the clock does.
        prop_assume!(u128::from(per_packet) * 1_000_000 / u128::from(rate) < 60);
        let sender = Sender { rate, per_packet, start, rounding };
        let mut grids = Grids::new(sender.samples());
        let first = number(&mut grids, sender.picoseconds(0), 0).number;
        let mut n = 0;
        for step in steps {
            if n + step > 4_000_000 {
                break;
            }
            n += step;
            let numbered = number(&mut grids, sender.picoseconds(n), n);
            prop_assert_eq!(numbered.number.wrapping_sub(first), n);
            prop_assert!(numbered.agrees && !numbered.is_off_grid);
        }
    }
}

#[test]
fn inexact_rate_in_the_configuration_does_not_add_up() {
    // 200 MHz / 3, declared with 3 decimals.
    let rate = 66_666_666_667_000;
    let mut grids = Grids::new(Samples {
        per_packet: 1000,
        per_million_seconds: rate,
        tolerance: None,
    });
    let stamp = |n: u64| Stamp {
        reference: Seconds::Utc,
        unit: Fraction::Picoseconds,
        seconds: u32::try_from(n * 15_000_000 / 1_000_000_000_000).unwrap(),
        fraction: n * 15_000_000 % 1_000_000_000_000,
    };
    let first = number(&mut grids, stamp(0), 0).number;
    for n in (0..10_000_000).step_by(997) {
        assert_eq!(number(&mut grids, stamp(n), n).number - first, n);
    }
}

#[test]
fn restart_off_the_grid_has_numbers_far_from_the_old_ones() {
    let mut grids = Grids::new(RADIO.samples());
    let old = number(&mut grids, RADIO.picoseconds(7), 7).number;
    let restarted = Sender {
        start: RADIO.start + 2,
        ..RADIO
    };
    // The sender begins in the middle of a packet.
    let stamp = |n| {
        let mut stamp = restarted.picoseconds(n);
        stamp.fraction += 16_276_041;
        stamp
    };
    let first = number(&mut grids, stamp(0), 0);
    assert!(first.is_off_grid && first.number.abs_diff(old) > 1 << 50);
    for n in 1..10 {
        let numbered = number(&mut grids, stamp(n), n);
        assert!(!numbered.is_off_grid);
        assert_eq!(numbered.number - first.number, n);
    }
    // Packets of the old grid that are still under way keep their numbers.
    assert_eq!(number(&mut grids, RADIO.picoseconds(6), 6).number, old - 1);
}

#[test]
fn single_packets_off_the_grid_do_not_move_it() {
    let mut grids = Grids::new(RADIO.samples());
    let first = number(&mut grids, RADIO.picoseconds(0), 0).number;
    for n in 1..1000 {
        let mut wrong = RADIO.picoseconds(n);
        wrong.fraction += 100_000 * (n % 200 + 1);
        assert!(number(&mut grids, wrong, n).number.abs_diff(first) > 1 << 50);
        assert_eq!(
            number(&mut grids, RADIO.picoseconds(n), n).number,
            first + n
        );
    }
}

#[test]
fn single_packets_far_ahead_do_not_move_the_anchor() {
    let mut grids = Grids::new(RADIO.samples());
    let first = number(&mut grids, RADIO.picoseconds(0), 0).number;
    for n in 1..1000 {
        let far = 100_000_000 * (n % 7 + 1);
        assert_eq!(
            number(&mut grids, RADIO.picoseconds(far), far).number - first,
            far
        );
        assert_eq!(
            number(&mut grids, RADIO.picoseconds(n), n).number - first,
            n
        );
    }
    // After an outage, the anchor follows.
    for n in 50_000_000..50_000_010 {
        assert_eq!(
            number(&mut grids, RADIO.picoseconds(n), n).number - first,
            n
        );
    }
}

#[test]
fn repeated_second_begins_another_grid() {
    // 61.44 MHz: a second has a multiple of 16 packets, so the packet count is the same a second later.
    for per_packet in [1024, 1000, 61_440_000] {
        let radio = Sender {
            rate: 61_440_000_000_000,
            per_packet,
            ..RADIO
        };
        let per_second = 61_440_000 / per_packet;
        let mut grids = Grids::new(radio.samples());
        for n in 0..per_second {
            number(&mut grids, radio.picoseconds(n), n);
        }
        // The sender repeats the last second: the leap second has the timestamps of the second before it.
        let first = number(&mut grids, radio.picoseconds(0), per_second);
        assert!(first.is_off_grid || per_second == 1, "{per_packet}");
        for n in 1..per_second.min(50) {
            let numbered = number(&mut grids, radio.picoseconds(n), per_second + n);
            assert_eq!(
                (numbered.number - first.number, numbered.is_off_grid),
                (n, false)
            );
        }
    }
}

#[test]
fn late_packet_is_on_the_grid() {
    let mut grids = Grids::new(RADIO.samples());
    let newest = number(&mut grids, RADIO.picoseconds(20_000), 20_000).number;
    // 0.48 s late.
    let late = number(&mut grids, RADIO.picoseconds(5_300), 5_300);
    assert_eq!((late.number, late.is_off_grid), (newest - 14_700, false));
    // Slow packets: the previous one is 1 s before the last.
    let slow = Sender {
        rate: 1_000_000_000,
        ..RADIO
    };
    let mut grids = Grids::new(slow.samples());
    let newest = number(&mut grids, slow.picoseconds(5), 5).number;
    assert_eq!(
        number(&mut grids, slow.picoseconds(4), 4).number,
        newest - 1
    );
}

#[test]
fn samples_lost_in_the_sender_disagree_with_the_count() {
    let mut grids = Grids::new(RADIO.samples());
    number(&mut grids, RADIO.picoseconds(0), 0);
    let after = number(&mut grids, RADIO.picoseconds(10), 1);
    assert!(!after.agrees);
    assert!(number(&mut grids, RADIO.picoseconds(11), 2).agrees);
}

#[test]
fn tolerance_accepts_inexact_timestamps() {
    let coarse = |n: u64| {
        let mut stamp = RADIO.picoseconds(n);
        stamp.fraction = stamp.fraction / 1_000_000 * 1_000_000;
        stamp
    };
    let mut strict = Grids::new(RADIO.samples());
    let mut tolerant = Grids::new(Samples {
        tolerance: Some(1_000_000),
        ..RADIO.samples()
    });
    number(&mut strict, coarse(0), 0);
    let first = number(&mut tolerant, coarse(0), 0).number;
    let off = (1..1000).filter(|n| number(&mut strict, coarse(*n), *n).is_off_grid);
    assert!(off.count() > 500);
    for n in 1..100_000 {
        assert_eq!(number(&mut tolerant, coarse(n), n).number - first, n);
    }
}

#[test]
fn threads_agree_on_numbers() {
    let mut a = Grids::new(RADIO.samples());
    let mut b = a.clone();
    let first = number(&mut a, RADIO.picoseconds(0), 0).number;
    let other = number(&mut b, RADIO.picoseconds(40_000), 40_000);
    assert_eq!((other.number, other.is_off_grid), (first + 40_000, false));
}

#[test]
fn timestamps_that_cannot_number_packets_are_refused() {
    let mut grids = Grids::new(RADIO.samples());
    for (reference, unit) in [
        (Seconds::None, Fraction::None),
        (Seconds::Utc, Fraction::None),
        (Seconds::None, Fraction::Picoseconds),
    ] {
        let stamp = Stamp {
            reference,
            unit,
            ..Stamp::default()
        };
        assert_eq!(grids.number(&stamp, 0), None);
    }
    // The count of samples begins again at each second.
    let mut fractional = Grids::new(Samples {
        per_million_seconds: 30_720_000_500_000,
        ..RADIO.samples()
    });
    assert_eq!(fractional.number(&RADIO.in_samples(0), 0), None);
}
