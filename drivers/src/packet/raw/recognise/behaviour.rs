//! How a number of a header changes from packet to packet.

use crate::packet::recognise::mode;

/// Share of the differences that must be equal.
const MIN_SHARE: f64 = 0.5;
/// Share of the differences that loss and reordering must explain.
const MIN_EXPLAINED: f64 = 0.95;
/// Largest number of steps that loss or reordering explains.
const MAX_STEPS: i64 = 256;
/// Maximum number of packets in a frame.
const MAX_PACKETS: u64 = 1 << 20;

/// How a number changes from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Behaviour {
    /// It grows by `step` in each packet, except where packets were lost or reordered.
    Steps { step: u64, share: f64 },
    /// It counts from `first` to `last` in steps of `stride`, and starts again.
    Cycles { first: u64, last: u64, stride: u64 },
    /// It is the same in several packets, then grows by `step`.
    Holds { step: u64 },
}

/// Returns the differences of subsequent numbers of `bits` bits, as signed numbers.
fn differences(values: &[u64], bits: u32) -> impl Iterator<Item = i64> + '_ {
    let unused = 64 - bits.clamp(1, 64);
    values
        .windows(2)
        .map(move |pair| (pair[1].wrapping_sub(pair[0]) << unused).cast_signed() >> unused)
}

/// Returns the part of `whole`.
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Returns the behaviour of a number of `bits` bits; `None` if it does not count.
pub(super) fn behaviour(values: &[u64], bits: u32) -> Option<Behaviour> {
    let all: Vec<i64> = differences(values, bits).collect();
    let zeros = all.iter().filter(|difference| **difference == 0).count();
    if zeros == all.len() {
        return None;
    }
    if let Some(cycle) = cycles(values, bits) {
        return Some(cycle);
    }
    let moved = || all.iter().copied().filter(|difference| *difference != 0);
    let (step, count) = mode(moved().filter(|difference| *difference > 0))?;
    let of = all.len() - zeros;
    let explains = |difference: i64| {
        difference % step == 0 && (difference / step).abs() <= MAX_STEPS.min(1 << (bits / 2).min(8))
    };
    let explained = moved().filter(|difference| explains(*difference)).count();
    if share(count, of) < MIN_SHARE || share(explained, of) < MIN_EXPLAINED {
        return None;
    }
    let step = step.unsigned_abs();
    if zeros * 2 >= all.len() {
        // A number that hardly ever changes shows no regular step.
        return (of >= 2).then_some(Behaviour::Holds { step });
    }
    let share = share(count, all.len());
    (share >= MIN_SHARE).then_some(Behaviour::Steps { step, share })
}

/// Returns whether a number that is the same in several packets starts again at the same value at least twice.
pub(super) fn is_held_cycle(values: &[u64], bits: u32) -> bool {
    let mut held = values.to_vec();
    held.dedup();
    cycles(&held, bits).is_some()
}

/// Returns the cycle of numbers that start again at the same value at least twice.
fn cycles(values: &[u64], bits: u32) -> Option<Behaviour> {
    let (first, last) = (*values.iter().min()?, *values.iter().max()?);
    let rising = values.windows(2).filter(|pair| pair[1] > pair[0]);
    let (stride, count) = mode(rising.map(|pair| pair[1] - pair[0]))?;
    let falls: Vec<(u64, u64)> = values
        .windows(2)
        .filter(|pair| pair[1] < pair[0])
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let packets = (last - first) / stride + 1;
    let is_regular = (last - first).is_multiple_of(stride)
        && (2..=MAX_PACKETS).contains(&packets)
        && values
            .iter()
            .all(|value| (value - first).is_multiple_of(stride));
    // A number that uses all its bits wraps by itself.
    let is_wrap = bits < 64 && last == (1 << bits) - 1 && first == 0;
    if !is_regular || is_wrap || falls.len() < 2 {
        return None;
    }
    // Loss may remove the last or the first packet of a frame; reordering makes small steps back.
    let is_whole = |fall: &&(u64, u64)| fall.0 == last && fall.1 == first;
    let whole = falls.iter().filter(is_whole).count();
    let steps = values.len() - 1 - falls.len();
    // A cycle that begins at a high number could be by chance, so nearly all of it must be seen.
    let min = if first <= 1 { MIN_SHARE } else { MIN_EXPLAINED };
    let is_cycle = share(whole, falls.len()) >= min && share(count, steps) >= min;
    is_cycle.then_some(Behaviour::Cycles {
        first,
        last,
        stride,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_cycles_and_held_numbers_are_distinguished() {
        let counter: Vec<u64> = (250..600).map(|n| n * 3 % 65_536).collect();
        let steps = behaviour(&counter, 16);
        assert!(
            matches!(steps, Some(Behaviour::Steps { step: 3, .. })),
            "{steps:?}"
        );
        let wrapped: Vec<u64> = (0..600).map(|n| n % 256).collect();
        let steps = behaviour(&wrapped, 8);
        assert!(
            matches!(steps, Some(Behaviour::Steps { step: 1, .. })),
            "{steps:?}"
        );
        let cycle: Vec<u64> = (0..60).map(|n| 1 + n % 7).collect();
        let expected = Behaviour::Cycles {
            first: 1,
            last: 7,
            stride: 1,
        };
        assert_eq!(behaviour(&cycle, 32), Some(expected));
        let later: Vec<u64> = cycle.iter().map(|n| n + 31).collect();
        let expected = Behaviour::Cycles {
            first: 32,
            last: 38,
            stride: 1,
        };
        assert_eq!(behaviour(&later, 32), Some(expected));
        let frame: Vec<u64> = (0..60).map(|n| 100 + n / 7 * 2).collect();
        assert_eq!(behaviour(&frame, 32), Some(Behaviour::Holds { step: 2 }));
        assert_eq!(behaviour(&[5; 40], 32), None);
        assert!(!is_held_cycle(&frame, 32));
        let module: Vec<u64> = (0..60).map(|n| n / 5 % 4).collect();
        assert!(is_held_cycle(&module, 32));
        let random: Vec<u64> = (1..90).map(|n| (n * n * 7919) % 251).collect();
        assert_eq!(behaviour(&random, 8), None);
    }
}
