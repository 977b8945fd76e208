//! Compares the times of packets with the times at which they were received, and with the sample rate.
//!
//! A wrong `tick`, `origin` or `rate` gives absurd times, or frames of the wrong duration, although no packet is lost. The comparison
//! runs about once per second of receive time.

use crate::packet::TimeScale;
use daq_core::frame::{Clock, Timestamp};
use daq_core::reorder::{Geometry, Numbering, PacketId};

/// Number of nanoseconds between two comparisons.
const INTERVAL: u64 = 1_000_000_000;
/// Number of intervals in a row that must show the same ratio.
const CONFIRM: u32 = 3;
/// Maximum relative difference of ratios that are the same.
const SAME: f64 = 0.02;
/// Ratios of clocks within these limits are normal: a sender may be slower or faster for a while.
const NORMAL: std::ops::RangeInclusive<f64> = 0.67..=1.5;
/// Maximum relative difference between the declared duration of packets and their times.
const RATE_ERROR: f64 = 0.01;
/// Maximum number of nanoseconds by which a time in UTC may be after the time of its arrival.
const MAX_AHEAD: u64 = 86_400_000_000_000;
/// Maximum relative difference of a ratio from a power of ten, or from that of consecutive units.
const NEAR: f64 = 0.2;

/// A packet that was compared.
#[derive(Clone, Copy, Debug)]
struct Sample {
    received_ns: u64,
    time_ns: u64,
    unit: u64,
}

/// The comparison of one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct ClockCheck {
    /// The receive time of the next comparison in nanoseconds.
    next_ns: u64,
    last: Option<Sample>,
    /// The last packet that was compared, until the next unit has arrived.
    pair: Option<Sample>,
    /// The declared duration of a unit in proportion to the difference between the times of consecutive units.
    adjacent: Option<f64>,
    clocks: Repeated,
    rates: Repeated,
    is_done: bool,
}

/// A ratio that repeats.
#[derive(Clone, Copy, Debug, Default)]
struct Repeated {
    ratio: f64,
    times: u32,
}

impl Repeated {
    /// Adds a ratio, and returns it if it has repeated often enough.
    fn add(&mut self, ratio: f64) -> Option<f64> {
        let is_same = (ratio / self.ratio - 1.0).abs() <= SAME;
        self.times = if is_same { self.times + 1 } else { 1 };
        self.ratio = ratio;
        (self.times >= CONFIRM).then_some(ratio)
    }
}

impl ClockCheck {
    /// Returns whether a packet received at `received` is compared.
    #[inline]
    pub(super) const fn is_due(&self, received: Timestamp) -> bool {
        (received.ns >= self.next_ns || self.pair.is_some()) && !self.is_done && received.ns > 0
    }

    /// Compares a packet with `time`. Returns a warning, once.
    #[cold]
    pub(super) fn compare(
        &mut self,
        id: PacketId,
        time: Timestamp,
        received: Timestamp,
        scale: &TimeScale,
        geometry: &Geometry,
    ) -> Option<String> {
        let now = Sample {
            received_ns: received.ns,
            time_ns: time.ns,
            unit: id.unit,
        };
        if let Some(first) = self.pair.take_if(|first| first.unit != id.unit) {
            self.adjacent = adjacent(&first, &now, geometry).or(self.adjacent);
        }
        if received.ns < self.next_ns {
            return None;
        }
        self.next_ns = received.ns.saturating_add(INTERVAL);
        if time.clock == Clock::None || received.clock == Clock::None {
            return None;
        }
        self.pair = (geometry.frame_ns > 0).then_some(now);
        // The clock of a network card may count from another time.
        let is_comparable = received.clock != Clock::Hardware;
        let warning = is_comparable.then(|| future(&now, scale)).flatten();
        let warning = warning.or_else(|| self.progress(&now, scale, geometry));
        self.last = Some(now);
        self.is_done = warning.is_some();
        warning
    }

    /// Returns a warning if the times advance otherwise than the host's clock, or than the sample rate states.
    fn progress(&mut self, now: &Sample, scale: &TimeScale, geometry: &Geometry) -> Option<String> {
        let last = self.last?;
        let received = now.received_ns.checked_sub(last.received_ns)? as f64;
        let time = now.time_ns.checked_sub(last.time_ns)? as f64;
        let ratio = self.clocks.add(time / received)?;
        if !NORMAL.contains(&ratio) {
            let tick = tick(scale, ratio)
                .map_or_else(String::new, |tick| format!(", which would be about {tick}"));
            return Some(format!(
                "the times of packets advance by {ratio:.3} s per second of their arrival: check `tick` or `rate` of \
                 `timestamp`{tick}"
            ));
        }
        let Numbering { step, .. } = geometry.numbering;
        let units = geometry.numbering.distance(last.unit, now.unit) / step.cast_signed().max(1);
        let units_per_frame = geometry.packets_per_frame / geometry.numbering.packets_per_unit;
        if geometry.declared_ns == 0 || units <= 0 || units_per_frame == 0 {
            return None;
        }
        let declared = geometry.declared_ns as f64 / f64::from(units_per_frame) * units as f64;
        let ratio = self.rates.add(declared / time)?;
        // After a trigger, there may be pauses between frames or between packets, but they cannot overlap.
        let has_no_pauses = || {
            let adjacent = self.adjacent?;
            Some((adjacent / ratio - 1.0).abs() <= NEAR)
        };
        let is_wrong = ratio - 1.0 > RATE_ERROR
            || 1.0 - ratio > RATE_ERROR && has_no_pauses().unwrap_or(false);
        is_wrong.then(|| {
            format!(
                "the times of packets show {ratio:.4} times the declared sample rate: check `rate`, `channels` and `type` of `samples`, \
                 and `tick` of `timestamp`"
            )
        })
    }
}

/// Returns the declared duration of a unit in proportion to the time from `first` to `now`, if they are consecutive units.
fn adjacent(first: &Sample, now: &Sample, geometry: &Geometry) -> Option<f64> {
    let Numbering { step, .. } = geometry.numbering;
    let is_next = geometry.numbering.distance(first.unit, now.unit) == step.cast_signed();
    let units_per_frame = geometry.packets_per_frame / geometry.numbering.packets_per_unit;
    let time = now.time_ns.checked_sub(first.time_ns)?;
    let declared = geometry.declared_ns as f64 / f64::from(units_per_frame.max(1));
    (is_next && time > 0).then(|| declared / time as f64)
}

/// Returns a warning if the time is in the future.
fn future(now: &Sample, scale: &TimeScale) -> Option<String> {
    let origin = scale.origin_ns?;
    let ahead = now.time_ns.checked_sub(now.received_ns)?;
    if ahead < MAX_AHEAD {
        return None;
    }
    let since = now.received_ns.saturating_sub(origin).max(1) as f64;
    let ratio = now.time_ns.saturating_sub(origin) as f64 / since;
    let days = ahead / 86_400_000_000_000;
    // Times beyond the year 2554 saturate, so they do not show the ratio.
    let key = match tick(scale, ratio) {
        _ if now.time_ns == u64::MAX => "`tick` of `timestamp`, which is too long".to_owned(),
        Some(tick) => format!("`tick` of `timestamp`, which would be about {tick}"),
        None => "`origin` and `tick` of `timestamp`".to_owned(),
    };
    Some(format!(
        "the times of packets are {days} days later than their arrival: check {key}"
    ))
}

/// Returns the duration of a tick as text, if clocks that differ by `ratio` are explained by another unit.
fn tick(scale: &TimeScale, ratio: f64) -> Option<String> {
    let power = ratio.log10().round();
    let is_unit = power != 0.0 && (ratio / 10f64.powf(power) - 1.0).abs() < NEAR;
    let ns = scale.nanoseconds as f64 / scale.ticks.max(1) as f64;
    is_unit.then(|| format!("{} ns", ns / 10f64.powf(power)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_795_000_000_000_000_000;

    /// Returns the warning about packets every 10 ms, whose clock runs `speed` times as fast, with `tick` in nanoseconds.
    fn warning(tick_ns: u64, origin: Option<u64>, speed: f64, frame_ns: u64) -> Option<String> {
        let geometry = Geometry {
            frame_ns,
            declared_ns: frame_ns,
            ..Geometry::new(10, 1000)
        };
        warning_in(geometry, tick_ns, origin, speed)
    }

    fn warning_in(
        geometry: Geometry,
        tick_ns: u64,
        origin: Option<u64>,
        speed: f64,
    ) -> Option<String> {
        let scale = TimeScale {
            nanoseconds: tick_ns,
            ticks: 1,
            origin_ns: origin,
        };
        let mut check = ClockCheck::default();
        let mut found = Vec::new();
        for unit in 0..1000_u64 {
            let received = START + unit * 10_000_000;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "small"
            )]
            let ns = ((received - origin.unwrap_or(START)) as f64 * speed) as u64;
            let time = Timestamp {
                ns: scale.ns(ns),
                clock: scale.clock(),
            };
            let received = Timestamp {
                ns: received,
                clock: Clock::Kernel,
            };
            if check.is_due(received) {
                found.extend(check.compare(PacketId::of(unit), time, received, &scale, &geometry));
            }
        }
        assert!(found.len() <= 1, "{found:?}");
        found.pop()
    }

    #[test]
    fn wrong_tick_origin_and_rate_are_named() {
        // The sender counts nanoseconds.
        let found = warning(1000, Some(START - 86_400_000_000_000), 1.0, 0).unwrap();
        assert!(found.contains("days later than their arrival"), "{found}");
        assert!(
            found.contains("`tick` of `timestamp`, which would be about 1 ns"),
            "{found}"
        );
        let found = warning(1000, Some(0), 1.0, 0).unwrap();
        assert!(found.contains("which is too long"), "{found}");
        let found = warning(1000, None, 1.0, 0).unwrap();
        assert!(found.contains("advance by 1000.000 s"), "{found}");
        assert!(found.contains("about 1 ns"), "{found}");
        // 10 packets last 100 ms, but 50 ms are declared.
        let found = warning(1, None, 1.0, 50_000_000).unwrap();
        assert!(
            found.contains("0.5000 times the declared sample rate"),
            "{found}"
        );
    }

    #[test]
    fn frames_with_times_of_their_own_cannot_overlap() {
        // A frame of 10 packets every 10 ms.
        let warning = |declared_ns| {
            let geometry = Geometry {
                declared_ns,
                numbering: Numbering {
                    packets_per_unit: 10,
                    ..Numbering::PLAIN
                },
                ..Geometry::new(10, 1000)
            };
            warning_in(geometry, 1, None, 1.0)
        };
        let found = warning(20_000_000).unwrap();
        assert!(
            found.contains("2.0000 times the declared sample rate"),
            "{found}"
        );
        for declared_ns in [0, 10_000, 10_000_000] {
            assert_eq!(warning(declared_ns), None);
        }
    }

    /// A trigger every 100 ms, after which 10 packets follow each other for 10 ms.
    #[test]
    fn pauses_between_triggers_are_not_a_wrong_rate() {
        let found = |declared_ns| {
            let geometry = Geometry {
                frame_ns: declared_ns,
                declared_ns,
                ..Geometry::new(10, 1000)
            };
            let scale = TimeScale {
                nanoseconds: 1,
                ticks: 1,
                origin_ns: None,
            };
            let mut check = ClockCheck::default();
            let mut found = None;
            for unit in 0..2000_u64 {
                let ns = unit / 10 * 100_000_000 + unit % 10 * 1_000_000;
                let at = |ns, clock| Timestamp { ns, clock };
                let received = at(START + ns, Clock::Kernel);
                let time = at(START + ns, Clock::Sensor);
                if check.is_due(received) {
                    let id = PacketId::of(unit);
                    found = found.or(check.compare(id, time, received, &scale, &geometry));
                }
            }
            found
        };
        assert_eq!(found(10_000_000), None);
        // Frames that overlap the next trigger.
        assert!(found(200_000_000).is_some());
    }

    #[test]
    fn right_times_are_not_warned_of() {
        for speed in [0.9, 1.0, 1.0001] {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "small"
            )]
            let frame_ns = (100_000_000.0 * speed) as u64;
            for frame_ns in [0, frame_ns] {
                assert_eq!(warning(1, None, speed, frame_ns), None);
                assert_eq!(warning(1, Some(START), speed, frame_ns), None);
            }
        }
    }
}
