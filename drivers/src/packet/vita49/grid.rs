//! Numbers packets by their timestamps.
//!
//! All packets contain the same number of samples, so their timestamps form a grid:
//!
//! ```text
//!   anchor           period            packet
//!     |----------|----------|----------|--·--|     number = that of the anchor + 3
//!                                       rest: at most the tolerance, otherwise the packet is off the grid
//! ```
//! The anchor is the latest packet on the grid. So errors of the declared rate do not add up, and rounding by the sender
//! matters only for a single distance.
//!
//! A packet off the grid begins another grid. Numbers of different grids are far apart, so the reorder window treats these
//! packets like those of a sender that may have restarted: it keeps them aside until several are consistent.

use super::prologue::{Fraction, Seconds, Stamp};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Unit of the axis of timestamps in picoseconds: 2^-20 ps, so that the period is exact enough for any rate.
const PICOSECOND: i128 = 1 << 20;
/// Number of picoseconds per second.
const SECOND: i128 = 1_000_000_000_000;
/// Number of bits of a packet number within a grid. The bits above them distinguish grids.
const GRID_BITS: u32 = 56;
/// Number of packets in a row on another grid after which this grid is the current one.
const ADOPT_AFTER: u32 = 4;
/// Maximum number of packets from the anchor to a packet that becomes the anchor at once. After a longer step, several packets
/// must confirm it, because a single damaged or forged timestamp must not move the anchor.
const MAX_AHEAD: i64 = 4096;
/// The packet count of VITA 49 repeats after this number of packets.
const COUNTS: i128 = 16;

/// The samples of the packets: what their timestamps must agree with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Samples {
    /// Number of samples per channel in a packet, at least 1.
    pub(super) per_packet: u64,
    /// Number of samples per channel in 1,000,000 seconds, at least 1.
    pub(super) per_million_seconds: u64,
    /// Maximum difference between a timestamp and the grid in picoseconds; `None` for half a sample.
    pub(super) tolerance: Option<u64>,
}

/// The axis of one kind of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    /// Number of units per integer second; 0 if the fraction does not depend on the integer seconds.
    second: i128,
    /// Number of units per tick of the fraction.
    tick: i128,
    /// Number of units per packet.
    pub(super) period: i128,
    /// Maximum distance from the grid in units.
    pub(super) tolerance: i128,
    /// Number of units in half a second. A step back by more is not a late packet.
    max_late: i128,
}

impl Samples {
    /// Returns the axis of timestamps like `stamp`, or `None` if such timestamps do not number packets.
    pub(super) fn axis(&self, stamp: &Stamp) -> Option<Axis> {
        let (per_packet, rate) = (
            i128::from(self.per_packet),
            i128::from(self.per_million_seconds),
        );
        let tolerance = self.tolerance.map(i128::from);
        let in_samples = |second| Axis {
            second,
            tick: 1,
            period: per_packet,
            tolerance: tolerance.map_or(0, |ps| ps * rate / (SECOND * 1_000_000)),
            max_late: (rate / 2_000_000).max(1),
        };
        match (stamp.reference, stamp.unit) {
            (_, Fraction::FreeRunning) | (Seconds::None, Fraction::Samples) => Some(in_samples(0)),
            // The count begins again at every second, so a second must have a whole number of samples.
            (_, Fraction::Samples) => (rate % 1_000_000 == 0).then(|| in_samples(rate / 1_000_000)),
            (Seconds::None, Fraction::Picoseconds) | (_, Fraction::None) => None,
            (_, Fraction::Picoseconds) => {
                let million_seconds = SECOND * 1_000_000 * PICOSECOND;
                // Both timestamps may be rounded by up to 1 ps.
                let half = (million_seconds / (2 * rate)).max(2 * PICOSECOND);
                Some(Axis {
                    second: SECOND * PICOSECOND,
                    tick: PICOSECOND,
                    period: (per_packet * million_seconds + rate / 2) / rate,
                    tolerance: tolerance.map_or(half, |ps| ps * PICOSECOND),
                    max_late: SECOND * PICOSECOND / 2,
                })
            }
        }
    }
}

/// Where a packet is relative to a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Number of packets after the anchor; negative before it.
    packets: i64,
    /// Whether the packet count agrees with the number of packets.
    agrees: bool,
}

/// A grid of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    axis: Axis,
    anchor: Stamp,
    /// Number of the anchor.
    number: u64,
    /// Packet count of the anchor.
    count: u8,
    /// Number of grids of the source before this one.
    index: u64,
}

impl Grid {
    /// Returns a grid whose anchor is the packet with `stamp` and `count`. Grids with different `index` have numbers far
    /// from each other.
    fn new(axis: Axis, stamp: Stamp, count: u8, index: u64) -> Self {
        let units =
            i128::from(stamp.seconds) * axis.second + i128::from(stamp.fraction) * axis.tick;
        // Numbers of a later grid are lower, so no numbers count as skipped. Half of the numbers of a grid are before the
        // anchor and half are after it.
        let packets = u64::try_from(units / axis.period.max(1)).unwrap_or(0);
        Self {
            axis,
            anchor: stamp,
            number: index.wrapping_neg() << GRID_BITS | packets & ((1 << (GRID_BITS - 1)) - 1),
            count,
            index,
        }
    }

    /// Returns the signed distance of `stamp` from the anchor in units.
    #[inline]
    fn distance(&self, stamp: &Stamp) -> i128 {
        distance(&self.axis, &self.anchor, stamp)
    }

    /// Returns the position of a packet on the grid, or `None` if it is off the grid.
    #[inline]
    fn place(&self, stamp: &Stamp, count: u8) -> Option<Place> {
        if stamp.reference != self.anchor.reference || stamp.unit != self.anchor.unit {
            return None;
        }
        let distance = self.distance(stamp);
        let (packets, rest) = nearest(distance, self.axis.period);
        if rest.abs() > self.axis.tolerance {
            return None;
        }
        let agrees = (packets - i128::from(count) + i128::from(self.count)) % COUNTS == 0;
        // After a leap second, or if the sender's clock was set back, timestamps that were used before are used again.
        // Late packets of the network are neither that late nor that many.
        if -distance >= self.axis.max_late && (packets <= -COUNTS || !agrees) {
            return None;
        }
        let packets = i64::try_from(packets).ok()?;
        let is_near = packets.unsigned_abs() < 1 << (GRID_BITS - 2);
        is_near.then_some(Place { packets, agrees })
    }

    /// Returns the number of a packet, and makes it the anchor if it is the latest.
    #[inline]
    fn follow(&mut self, place: Place, stamp: &Stamp, count: u8) -> u64 {
        let number = self.number.wrapping_add_signed(place.packets);
        if place.packets > 0 {
            (self.anchor, self.number, self.count) = (*stamp, number, count);
        }
        number
    }

    /// Returns the number of the first packet of another thread or stream, whose packet count may differ.
    fn join(&mut self, place: Place, stamp: &Stamp, count: u8) -> u64 {
        // Only the lowest bits of the number matter.
        let packets = place.packets.to_le_bytes()[0];
        self.count = count.wrapping_sub(packets) & 0xf;
        self.follow(place, stamp, count)
    }
}

/// Returns the signed distance from `from` to `to` in units of `axis`.
#[inline]
pub(super) fn distance(axis: &Axis, from: &Stamp, to: &Stamp) -> i128 {
    let seconds = i64::from(to.seconds) - i64::from(from.seconds);
    let ticks = to.fraction.wrapping_sub(from.fraction).cast_signed();
    i128::from(seconds) * axis.second + i128::from(ticks) * axis.tick
}

/// Divides `distance` by `period`, rounded to the nearest whole number. Also returns the rest.
#[inline]
fn nearest(distance: i128, period: i128) -> (i128, i128) {
    // Division of 64-bit numbers is several times as fast.
    let packets = match (i64::try_from(distance + period / 2), i64::try_from(period)) {
        (Ok(distance), Ok(period)) => i128::from(distance.div_euclid(period)),
        _ => (distance + period / 2).div_euclid(period),
    };
    (packets, distance - packets * period)
}

/// A numbered packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) number: u64,
    /// Whether the packet count agrees with the number.
    pub(super) agrees: bool,
    /// Whether the packet is the first of another grid.
    pub(super) is_off_grid: bool,
}

/// The grids of a stream, for one thread. Clones for other threads, and for other streams with equal times, number packets alike.
#[derive(Clone, Debug)]
pub(super) struct Grids {
    samples: Samples,
    current: Option<Grid>,
    /// Another grid, and the number of packets in a row on it.
    other: Option<(Grid, u32)>,
    shared: Arc<Mutex<Known>>,
}

/// What the threads and the streams of a source share. It is locked only for packets off the grid.
#[derive(Debug, Default)]
struct Known {
    current: Option<Grid>,
    /// The last grid that began.
    latest: Option<Grid>,
    /// Number of grids so far.
    grids: u64,
}

impl Grids {
    pub(super) fn new(samples: Samples) -> Self {
        Self {
            samples,
            current: None,
            other: None,
            shared: Arc::default(),
        }
    }

    /// Returns the number of a packet, or `None` if its timestamp cannot number packets.
    #[inline]
    pub(super) fn number(&mut self, stamp: &Stamp, count: u8) -> Option<Numbered> {
        if let Some(current) = &mut self.current
            && let Some(place) = current.place(stamp, count)
            && place.packets <= MAX_AHEAD
        {
            let number = current.follow(place, stamp, count);
            if let Some((_, packets)) = &mut self.other {
                *packets = 0;
            }
            return Some(Numbered {
                number,
                agrees: place.agrees || place.packets < 0,
                is_off_grid: false,
            });
        }
        self.number_off_grid(stamp, count)
    }

    #[cold]
    fn number_off_grid(&mut self, stamp: &Stamp, count: u8) -> Option<Numbered> {
        let on_grid = |number, agrees| {
            Some(Numbered {
                number,
                agrees,
                is_off_grid: false,
            })
        };
        if let Some((grid, packets)) = &mut self.other
            && let Some(place) = grid.place(stamp, count)
            && place.packets <= MAX_AHEAD
        {
            let number = grid.follow(place, stamp, count);
            *packets += u32::from(place.packets > 0);
            if *packets >= ADOPT_AFTER {
                let adopted = *grid;
                self.known().current = Some(adopted);
                self.other = self.current.replace(adopted).map(|grid| (grid, 0));
            }
            return on_grid(number, place.agrees || place.packets < 0);
        }
        if let Some(mut ahead) = self.current
            && let Some(place) = ahead.place(stamp, count)
        {
            let number = ahead.follow(place, stamp, count);
            self.other = Some((ahead, 1));
            return on_grid(number, place.agrees);
        }
        let axis = self.samples.axis(stamp)?;
        let mut known = self.known();
        // The anchors that the threads share are old, so they are not used for the grids of this thread.
        let own = [self.current, self.other.map(|(grid, _)| grid)];
        let is_own = |grid: &Grid| own.iter().flatten().any(|own| own.index == grid.index);
        if let Some(mut grid) = known.current.filter(|grid| !is_own(grid))
            && let Some(place) = grid.place(stamp, count)
        {
            // Another thread or stream received this grid first.
            let number = grid.join(place, stamp, count);
            drop(known);
            self.other = self.current.replace(grid).map(|grid| (grid, 0));
            return on_grid(number, true);
        }
        if let Some(mut grid) = known.latest.filter(|grid| !is_own(grid))
            && let Some(place) = grid.place(stamp, count)
        {
            let number = grid.join(place, stamp, count);
            drop(known);
            self.other = Some((grid, 1));
            return on_grid(number, true);
        }
        // The bits above the packet number repeat after 256 grids.
        let used = [own[0], own[1], known.current, known.latest];
        let is_used = |index: u64| {
            let same = |grid: &Grid| grid.index << GRID_BITS == index << GRID_BITS;
            used.iter().flatten().any(same)
        };
        while is_used(known.grids) {
            known.grids += 1;
        }
        let grid = Grid::new(axis, *stamp, count, known.grids);
        known.grids += 1;
        known.latest = Some(grid);
        if known.current.is_none() {
            known.current = Some(grid);
        }
        drop(known);
        let is_first = self.current.is_none();
        if is_first {
            self.current = Some(grid);
        } else {
            self.other = Some((grid, 1));
        }
        Some(Numbered {
            number: grid.number,
            agrees: true,
            is_off_grid: !is_first,
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
