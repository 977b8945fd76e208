//! What a browser requests.

use super::{ScopeError, ScopedRing};
use daq_core::layout::Axis;
use std::ops::RangeInclusive;

/// Sizes of Fourier transforms.
const SIZES: RangeInclusive<usize> = 16..=1 << 16;
/// Size of the Fourier transforms of long frames, if the browser requests no size.
const DEFAULT_SIZE: usize = 1024;
/// The keys of a query.
const KEYS: &str = "channel, part, size, first, points, width, full_scale, row, index";

/// Which samples of a frame a browser shows, and how they are reduced. Parsed from the query of `/rings/NAME/scope`.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct View {
    /// The channel.
    pub(super) channel: usize,
    /// The part of the frame; all parts if `None`.
    pub(super) part: Option<usize>,
    /// Number of points of one Fourier transform, a power of two.
    pub(super) size: Option<usize>,
    /// First point of the curve over time.
    pub(super) first: usize,
    /// Number of points of the curve over time; all if `None`.
    pub(super) points: Option<usize>,
    /// Maximum number of columns of a curve.
    pub(super) width: usize,
    /// Amplitude of the largest sine that the converter can represent; by default that of the sample type.
    pub(super) full_scale: Option<f64>,
    /// Number of points of one row of an image.
    pub(super) row: Option<usize>,
    /// Number of the only frame that is shown; the newest frames if `None`.
    pub(super) index: Option<u64>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            channel: 0,
            part: None,
            size: None,
            first: 0,
            points: None,
            width: 800,
            full_scale: None,
            row: None,
            index: None,
        }
    }
}

impl View {
    /// Parses the query of a request, such as `channel=1&size=2048`.
    pub(in super::super) fn parse(query: &str) -> Result<Self, ScopeError> {
        let mut view = Self::default();
        let mut known = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if known.contains(&key) {
                let text = format!("`{key}` must not occur more than once");
                return Err(ScopeError::Query(text));
            }
            known.push(key);
            let whole = |range: RangeInclusive<usize>| {
                let parsed = value.parse().ok().filter(|number| range.contains(number));
                parsed.ok_or_else(|| outside(key, &range, value, ""))
            };
            match key {
                "channel" => view.channel = whole(0..=u32::MAX as usize)?,
                "part" => view.part = Some(whole(0..=u32::MAX as usize)?),
                "size" => {
                    let size = whole(SIZES)?;
                    if !size.is_power_of_two() {
                        let text = format!("`size` must be a power of two, not {value}");
                        return Err(ScopeError::Query(text));
                    }
                    view.size = Some(size);
                }
                "first" => view.first = whole(0..=usize::MAX)?,
                "points" => view.points = Some(whole(1..=usize::MAX)?),
                "width" => view.width = whole(16..=4096)?,
                "row" => view.row = Some(whole(2..=usize::MAX)?),
                "index" => view.index = Some(index(value)?),
                "full_scale" => {
                    let parsed = value.parse().ok();
                    let number = parsed.filter(|number: &f64| number.is_finite() && *number > 0.0);
                    let text = || format!("`full_scale` must be a number above 0, not {value:?}");
                    view.full_scale = Some(number.ok_or_else(|| ScopeError::Query(text()))?);
                }
                _ => {
                    let text = format!("unknown key {key:?}; the keys are {KEYS}");
                    return Err(ScopeError::Query(text));
                }
            }
        }
        Ok(view)
    }

    /// Checks that the frames of `ring` have everything that the browser requests. Frames can be shorter than their
    /// layout; a curve then ends with the frame.
    pub(super) fn check(&self, ring: &ScopedRing) -> Result<(), ScopeError> {
        let (layout, name) = (&ring.layout, &ring.ring.options().name);
        let within = |key, value: Option<usize>, range: RangeInclusive<usize>, why: &str| {
            let bad = value.filter(|value| !range.contains(value));
            let why = format!(" for ring `{name}`{why}");
            bad.map_or(Ok(()), |value| {
                Err(outside(key, &range, &value.to_string(), &why))
            })
        };
        let channels = (layout.channels as usize).max(1);
        let why = format!(
            ", whose frames have {channels} channel{}",
            if channels == 1 { "" } else { "s" }
        );
        within("channel", Some(self.channel), 0..=channels - 1, &why)?;
        let parts = ring.parts();
        if self.part.is_some() && parts.is_empty() {
            let text = format!(
                "`part` must be left out, because the frames of ring `{name}` do not consist of parts that are ranges of points"
            );
            return Err(ScopeError::Query(text));
        }
        within("part", self.part, 0..=parts.len().saturating_sub(1), "")?;
        let is_time = matches!(layout.axis, Axis::Time { .. });
        let is_image = layout.image().is_some();
        let first = (self.first > 0).then_some(self.first);
        for (key, value) in [
            ("size", self.size),
            ("first", first),
            ("points", self.points),
            ("row", self.row),
        ] {
            if value.is_some() && !is_time && !(is_image && key == "row") {
                let text = format!(
                    "`{key}` must be left out, because the frames of ring `{name}` are not samples over time"
                );
                return Err(ScopeError::Query(text));
            }
        }
        let points = ring.range(self.part, layout.points).len();
        let why = format!(", because {points} points are shown");
        let largest = largest_size(points);
        within("size", self.size, *SIZES.start()..=largest, &why)?;
        within("first", first, 0..=points.saturating_sub(1), &why)?;
        within(
            "points",
            self.points,
            1..=points.saturating_sub(self.first),
            &why,
        )?;
        within("row", self.row, 2..=points, &why)
    }

    /// Returns the number of points of one Fourier transform of `points` samples; `None` if there are too few samples.
    pub(super) fn transform_size(&self, points: usize) -> Option<usize> {
        let size = self.size.unwrap_or(DEFAULT_SIZE).min(largest_size(points));
        SIZES.contains(&size).then_some(size)
    }
}

/// Parses the query of `/rings/NAME/frame.npy`: the number of a frame, or nothing for the newest frame.
pub(in super::super) fn index_of(query: &str) -> Result<Option<u64>, ScopeError> {
    match query.split_once('=') {
        _ if query.is_empty() => Ok(None),
        Some(("index", value)) => index(value).map(Some),
        _ => Err(ScopeError::Query(format!(
            "unknown query {query:?}; write index=N, or no query for the newest frame"
        ))),
    }
}

fn index(value: &str) -> Result<u64, ScopeError> {
    let text = || format!("`index` must be the number of a frame, not {value:?}");
    value.parse().map_err(|_| ScopeError::Query(text()))
}

/// Returns the largest power of two that is at most `points` and at most the largest size of a transform.
fn largest_size(points: usize) -> usize {
    points
        .checked_ilog2()
        .map_or(0, |bits| 1 << bits)
        .min(*SIZES.end())
}

fn outside(key: &str, range: &RangeInclusive<usize>, value: &str, why: &str) -> ScopeError {
    let (min, max) = (range.start(), range.end());
    let range = match max {
        _ if min > max => return ScopeError::Query(format!("`{key}` must be left out{why}")),
        &usize::MAX => format!("of at least {min}"),
        _ if min == max => {
            return ScopeError::Query(format!("`{key}` must be {min}{why}, not {value:?}"));
        }
        _ => format!("from {min} to {max}"),
    };
    ScopeError::Query(format!(
        "`{key}` must be a whole number {range}{why}, not {value:?}"
    ))
}
