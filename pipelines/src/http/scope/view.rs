//! What a browser requests.

use super::ScopeError;

/// Which samples of a frame a browser shows, and how they are reduced. Parsed from the query of `/rings/NAME/scope`.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct View {
    /// The channel; the last one if the ring has fewer channels.
    pub(super) channel: usize,
    /// The part of the frame; all parts if `None`.
    pub(super) part: Option<usize>,
    /// Number of points of one Fourier transform, a power of two.
    pub(super) size: usize,
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
}

impl Default for View {
    fn default() -> Self {
        Self {
            channel: 0,
            part: None,
            size: 1024,
            first: 0,
            points: None,
            width: 800,
            full_scale: None,
            row: None,
        }
    }
}

impl View {
    /// Parses the query of a request, such as `channel=1&size=2048`.
    pub(in super::super) fn parse(query: &str) -> Result<Self, ScopeError> {
        let mut view = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let whole = |min: usize, max: usize| {
                let parsed = value.parse().ok();
                let number = parsed.filter(|number| (min..=max).contains(number));
                number.ok_or_else(|| {
                    let what = format!("`{key}` must be a whole number from {min} to {max}");
                    ScopeError::Query(format!("{what}, not {value:?}"))
                })
            };
            match key {
                "channel" => view.channel = whole(0, u32::MAX as usize)?,
                "part" => view.part = Some(whole(0, u32::MAX as usize)?),
                "size" => {
                    view.size = whole(16, 1 << 16)?;
                    if !view.size.is_power_of_two() {
                        let text = format!("`size` must be a power of two, not {value}");
                        return Err(ScopeError::Query(text));
                    }
                }
                "first" => view.first = whole(0, usize::MAX)?,
                "points" => view.points = Some(whole(1, usize::MAX)?),
                "width" => view.width = whole(16, 4096)?,
                "row" => view.row = Some(whole(0, 1 << 24)?).filter(|row| *row > 0),
                "full_scale" => {
                    let parsed = value.parse().ok();
                    let number = parsed.filter(|number: &f64| number.is_finite() && *number > 0.0);
                    let text = || format!("`full_scale` must be a number above 0, not {value:?}");
                    view.full_scale = Some(number.ok_or_else(|| ScopeError::Query(text()))?);
                }
                _ => {
                    let keys = "channel, part, size, first, points, width, full_scale, row";
                    let text = format!("unknown key {key:?}; the keys are {keys}");
                    return Err(ScopeError::Query(text));
                }
            }
        }
        Ok(view)
    }
}
