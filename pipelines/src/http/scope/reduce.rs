//! Reduces a frame to the message that a browser shows.
//!
//! ```text
//!   header bytes (u32) | data bytes (u32) | header: JSON, padded with spaces | data: float32 … |     all little-endian
//! ```

use super::decode::{Samples, within};
use super::spectrum::Transform;
use super::view::View;
use super::{ScopedRing, column};
use axum::body::Bytes;
use daq_core::frame::Flags;
use daq_core::layout::{Axis, Image, Scalar};
use serde::Serialize;
use serde_json::{Value, json};
use std::ops::Range;

/// Maximum number of ranges of missing points that a message contains.
const MAX_GAPS: usize = 256;
/// Maximum number of values of a histogram.
const HISTOGRAM: usize = 256;
/// Number of channels of a colour image: red, green and blue.
const COLOURS: usize = 3;
/// Maximum number of rows and columns of an image.
const IMAGE: (usize, usize) = (384, 512);
/// Maximum number of columns of a waterfall over the bins of a frame.
const BINS: usize = 1024;
/// Maximum number of named values.
const MAX_VALUES: usize = 1024;
/// Minimum number of channels over time that are shown as an image.
const MIN_CHANNELS: usize = 4;

/// Reduces frames of one ring for one view. Keeps its buffers from frame to frame.
pub(super) struct Reducer {
    view: View,
    transform: Option<Transform>,
    re: Vec<f32>,
    im: Vec<f32>,
}

/// The arrays of a message.
#[derive(Default)]
struct Arrays {
    names: Vec<Value>,
    data: Vec<u8>,
}

impl Arrays {
    fn push(&mut self, name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) {
        self.names.push(json!({ "name": name, "shape": shape }));
        self.data
            .extend(values.into_iter().flat_map(f32::to_le_bytes));
    }
}

/// The header of a message.
#[derive(Serialize)]
struct Header<'a> {
    ring: &'a str,
    index: u64,
    sequence: u64,
    epoch: u32,
    /// Time of the frame in milliseconds since 1970; its clock is `clock`.
    time_ms: f64,
    clock: &'static str,
    packets: u32,
    arrived: u32,
    /// Whether data is missing in the frame, or in the frames that it was computed from.
    incomplete: bool,
    #[serde(rename = "type")]
    scalar: &'static str,
    complex: bool,
    channel: usize,
    channels: usize,
    parts: &'a [String],
    axis: Value,
    /// Number of points of the channel, or of its part.
    frame_points: usize,
    /// The points of the curve.
    first: usize,
    points: usize,
    missing: Vec<[usize; 2]>,
    full_scale: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    spectrum: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    histogram: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<Value>,
    arrays: Vec<Value>,
}

impl Reducer {
    pub(super) const fn new(view: View) -> Self {
        Self {
            view,
            transform: None,
            re: Vec::new(),
            im: Vec::new(),
        }
    }

    pub(super) const fn view(&self) -> &View {
        &self.view
    }

    /// Reduces one frame, the `index`-th that was published. Skips the image if `is_wanted` returns false meanwhile.
    pub(super) fn reduce(
        &mut self,
        ring: &ScopedRing,
        index: u64,
        samples: &Samples<'_>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Bytes {
        let layout = &ring.layout;
        if !layout.has_separable_channels(samples.payload) {
            return failed(&format!(
                "cannot show frame {} of ring `{}`: it has {} of {} bytes, so it is unknown where its planar channels begin; use \
                 `order = \"interleaved\"`, or frames of equal size",
                samples.meta.sequence,
                ring.ring.options().name,
                samples.payload,
                layout.frame_bytes()
            ));
        }
        let channel = self.view.channel;
        let range = ring.range(self.view.part, samples.points);
        let missing = samples.missing(channel);
        samples.read(channel, range.clone(), &missing, &mut self.re, &mut self.im);
        let gaps: Vec<_> = missing
            .iter()
            .map(|gap| within(gap, &range))
            .filter(|gap| !gap.is_empty())
            .collect();
        let full_scale = self
            .view
            .full_scale
            .unwrap_or_else(|| full_scale(layout.scalar));
        let first = self.view.first.min(range.len().saturating_sub(1));
        let points = self
            .view
            .points
            .unwrap_or(usize::MAX)
            .min(range.len() - first);
        let (mut arrays, meta) = (Arrays::default(), samples.meta);
        let mut header = Header {
            ring: &ring.ring.options().name,
            index,
            sequence: meta.sequence,
            epoch: meta.epoch,
            time_ms: meta.timestamp.ns as f64 / 1e6,
            clock: meta.timestamp.clock.name(),
            packets: meta.packets_per_frame,
            arrived: meta.arrived,
            incomplete: meta.flags.contains(Flags::INCOMPLETE),
            scalar: layout.scalar.name(),
            complex: layout.complex,
            channel,
            channels: samples.channels,
            parts: ring.parts(),
            axis: axis(&layout.axis),
            frame_points: range.len(),
            first,
            points,
            missing: gaps
                .iter()
                .take(MAX_GAPS)
                .map(|gap| [gap.start, gap.end])
                .collect(),
            full_scale,
            spectrum: None,
            histogram: None,
            image: None,
            arrays: Vec::new(),
        };
        match &layout.axis {
            Axis::Fields(_) => {
                let values = self.re.iter().copied().take(MAX_VALUES);
                arrays.push("values", &[values.len()], values);
            }
            Axis::Time { rate } => {
                self.curve(first..first + points, &mut arrays);
                header.spectrum = self.spectrum(*rate, full_scale, layout.complex, &mut arrays);
                let masked = gaps.iter().map(Range::len).sum();
                header.histogram = self.histogram(layout.scalar, full_scale, masked, &mut arrays);
                header.image = self.image(ring, channel, range, samples, is_wanted, &mut arrays);
            }
            Axis::Pixels(image) => {
                let masked = gaps.iter().map(Range::len).sum();
                header.histogram = self.histogram(layout.scalar, full_scale, masked, &mut arrays);
                header.image = match self.view.row {
                    Some(_) => self.image(ring, channel, range, samples, is_wanted, &mut arrays),
                    None => self.pixels(image, samples, is_wanted, &mut arrays),
                };
            }
            Axis::Frequency { .. } => {
                let columns = self.re.len().min(BINS);
                self.phases(columns, &mut arrays);
                self.square();
                let maxima =
                    (0..columns).map(|i| extremes(&self.re[column(i, columns, self.re.len())]).1);
                arrays.push("waterfall", &[1, columns], maxima);
                let masked = gaps.iter().map(Range::len).sum();
                header.histogram = self.histogram(Scalar::Float32, full_scale, masked, &mut arrays);
                header.image = self.image(ring, channel, range, samples, is_wanted, &mut arrays);
            }
        }
        header.arrays = std::mem::take(&mut arrays.names);
        encode(&header, &arrays.data)
    }

    /// Replaces complex samples by their squared magnitude.
    fn square(&mut self) {
        for (re, im) in self.re.iter_mut().zip(self.im.drain(..)) {
            *re = *re * *re + im * im;
        }
    }

    /// Adds the phase of each column of complex bins in degrees: that of the sum of its values. NaN without a value.
    fn phases(&self, columns: usize, arrays: &mut Arrays) {
        if self.im.is_empty() {
            return;
        }
        let phase = |i| {
            let bins = column(i, columns, self.re.len());
            let [re, im] = [&self.re, &self.im].map(|values| {
                let known = values[bins.clone()].iter().filter(|value| !value.is_nan());
                known.sum::<f32>()
            });
            if re == 0.0 && im == 0.0 {
                f32::NAN
            } else {
                im.atan2(re).to_degrees()
            }
        };
        arrays.push("phase", &[columns], (0..columns).map(phase));
    }

    /// Adds the minimum and the maximum of each column of a curve.
    fn curve(&self, range: Range<usize>, arrays: &mut Arrays) {
        let columns = range.len().min(self.view.width);
        let values = [("min", "max", &self.re), ("min_im", "max_im", &self.im)];
        for (min, max, values) in values {
            let Some(values) = values.get(range.clone()) else {
                continue;
            };
            let columns_of =
                || (0..columns).map(|i| extremes(&values[column(i, columns, values.len())]));
            arrays.push(min, &[columns], columns_of().map(|(min, _)| min));
            arrays.push(max, &[columns], columns_of().map(|(_, max)| max));
        }
    }

    /// Adds the spectrum and the rows of the waterfall. Returns the axis of the bins; `None` if there are too few samples.
    fn spectrum(
        &mut self,
        rate: Option<f64>,
        full_scale: f64,
        complex: bool,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let size = self.view.transform_size(self.re.len())?;
        let transform = self
            .transform
            .take()
            .filter(|transform| transform.size() == size);
        let mut transform = transform.unwrap_or_else(|| Transform::new(size, complex));
        let spectra = transform.spectra(&self.re, &self.im, full_scale);
        let bins = transform.bins();
        self.transform = Some(transform);
        arrays.push("spectrum", &[bins], spectra.mean);
        arrays.push(
            "waterfall",
            &[spectra.rows.len() / bins, bins],
            spectra.rows,
        );
        let step = rate.unwrap_or(1.0) / size as f64;
        let start = if complex {
            -((size / 2) as f64) * step
        } else {
            0.0
        };
        Some(json!({ "start": start, "step": step, "size": size }))
    }

    /// Adds the number of values per bin. `masked` points are missing. Returns the bins and the statistics.
    fn histogram(
        &self,
        scalar: Scalar,
        full_scale: f64,
        masked: usize,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let values = || {
            self.re
                .iter()
                .chain(&self.im)
                .copied()
                .filter(|value| value.is_finite())
        };
        let total = self.re.len() + self.im.len();
        let masked = masked * if self.im.is_empty() { 1 } else { 2 };
        let (mut count, mut sum, mut squares) = (0_usize, 0.0, 0.0);
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values().map(f64::from) {
            count += 1;
            sum += value;
            squares += value * value;
            min = min.min(value);
            max = max.max(value);
        }
        if count == 0 {
            return None;
        }
        let limits = limits(scalar, full_scale, self.view.full_scale.is_some());
        let (start, step, bins) = bins(scalar.is_float(), min, max);
        let mut counts = vec![0_u32; bins];
        let (mut low, mut high) = (0_u64, 0_u64);
        for value in values().map(f64::from) {
            counts[(((value - start) / step) as usize).min(bins - 1)] += 1;
            if let Some((floor, ceiling)) = limits {
                low += u64::from(floor.is_some_and(|floor| value <= floor));
                high += u64::from(value >= ceiling);
            }
        }
        arrays.push(
            "histogram",
            &[bins],
            counts.into_iter().map(|count| count as f32),
        );
        Some(json!({
            "start": start, "step": step, "count": count, "low": low, "high": high,
            "low_limit": limits.and_then(|(floor, _)| floor), "high_limit": limits.map(|(_, ceiling)| ceiling),
            "min": min, "max": max, "mean": sum / count as f64, "rms": (squares / count as f64).sqrt(),
            "not_finite": (total - count).saturating_sub(masked),
        }))
    }

    /// Adds the image that the modules of a frame form: of the requested channel, or of three colours. Returns its kind and size in
    /// pixels. Places without a module have no values.
    fn pixels(
        &mut self,
        image: &Image,
        samples: &Samples<'_>,
        is_wanted: &dyn Fn() -> bool,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let (width, height) = image.size();
        let (rows, columns) = (height.min(IMAGE.0), width.min(IMAGE.1));
        let points = image.pixels().min(self.re.len());
        let is_colour = samples.channels == COLOURS;
        let channels = if is_colour { COLOURS } else { 1 };
        let mut sums = vec![(0.0_f32, 0_u32); rows * columns * channels];
        for channel in 0..channels {
            if !is_wanted() {
                return None;
            }
            if is_colour {
                let missing = samples.missing(channel);
                samples.read(channel, 0..points, &missing, &mut self.re, &mut self.im);
            }
            self.square();
            for (point, value) in self.re.iter().take(points).enumerate() {
                if value.is_nan() {
                    continue;
                }
                let (x, y) = image.place(point);
                let cell = y * rows / height * columns + x * columns / width;
                let (sum, count) = &mut sums[cell * channels + channel];
                (*sum, *count) = (*sum + value, *count + 1);
            }
        }
        let means = sums.iter().map(|(sum, count)| match count {
            0 => f32::NAN,
            count => sum / *count as f32,
        });
        let shape = [rows, columns, COLOURS];
        arrays.push("image", &shape[..if is_colour { 3 } else { 2 }], means);
        let kind = if is_colour { "colours" } else { "pixels" };
        let channel = (!is_colour).then_some(self.view.channel);
        Some(json!({ "kind": kind, "pixels": [height, width], "channel": channel }))
    }

    /// Adds an image: the rows of the frame, if `row` is set, or its channels. Returns its kind and size in pixels.
    fn image(
        &mut self,
        ring: &ScopedRing,
        channel: usize,
        range: Range<usize>,
        samples: &Samples<'_>,
        is_wanted: &dyn Fn() -> bool,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let is_time = matches!(ring.layout.axis, Axis::Time { .. });
        let row = self.view.row;
        if let Some(row) = row.filter(|row| *row > 1 && *row <= range.len()) {
            self.square();
            let pixels = (range.len() / row, row);
            let (rows, columns) = (pixels.0.min(IMAGE.0), row.min(IMAGE.1));
            let re = &self.re;
            let cell = |i: usize| {
                let (down, across) = (
                    column(i / columns, rows, pixels.0),
                    column(i % columns, columns, row),
                );
                mean(down.flat_map(|line| re[line * row..][across.clone()].iter().copied()))
            };
            arrays.push("image", &[rows, columns], (0..rows * columns).map(cell));
            return Some(
                json!({ "kind": "rows", "pixels": [pixels.0, pixels.1], "channel": channel }),
            );
        }
        if samples.channels < if is_time { MIN_CHANNELS } else { 2 } {
            return None;
        }
        let (rows, columns) = (samples.channels.min(IMAGE.0), range.len().min(IMAGE.1));
        let mut image = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            if !is_wanted() {
                return None;
            }
            // Of more channels than rows, only some are shown.
            let channel = row * samples.channels / rows;
            let missing = samples.missing(channel);
            samples.read(channel, range.clone(), &missing, &mut self.re, &mut self.im);
            if self.im.is_empty() && is_time {
                self.re.iter_mut().for_each(|value| *value *= *value);
            }
            self.square();
            let cells = (0..columns).map(|i| {
                let values = &self.re[column(i, columns, range.len())];
                if is_time {
                    mean(values.iter().copied()).sqrt()
                } else {
                    extremes(values).1
                }
            });
            image.extend(cells);
        }
        arrays.push("image", &[rows, columns], image);
        Some(json!({ "kind": "channels", "pixels": [samples.channels, range.len()] }))
    }
}

/// Returns the minimum and the maximum; NaN if every value is NaN.
fn extremes(values: &[f32]) -> (f32, f32) {
    let nan = (f32::NAN, f32::NAN);
    values
        .iter()
        .fold(nan, |(min, max), value| (min.min(*value), max.max(*value)))
}

/// Returns the mean of all values that are not NaN. If all values are NaN, returns NaN.
fn mean(values: impl Iterator<Item = f32>) -> f32 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values.filter(|value| !value.is_nan()) {
        sum += f64::from(value);
        count += 1.0;
    }
    (sum / count) as f32
}

/// Returns the amplitude of the largest sine of a type: 1 for floats.
fn full_scale(scalar: Scalar) -> f64 {
    scalar
        .range()
        .map_or(1.0, |(low, high)| (high as f64 - low as f64 + 1.0) * 0.5)
}

/// Returns the lowest and the highest value of the converter, or `None` if floats have no configured full scale. Zero is a
/// common value of unsigned converters, and therefore not a limit.
fn limits(scalar: Scalar, full_scale: f64, is_configured: bool) -> Option<(Option<f64>, f64)> {
    match scalar.range() {
        None => is_configured.then_some((Some(-full_scale), full_scale)),
        Some((0, _)) => Some((None, 2.0 * full_scale - 1.0)),
        Some(_) => Some((Some(-full_scale), full_scale - 1.0)),
    }
}

/// Returns the start of the first bin, the width and the number of the bins of a histogram. Bins of integers contain
/// whole numbers of integers.
fn bins(is_float: bool, min: f64, max: f64) -> (f64, f64, usize) {
    if is_float {
        let width = (max - min) / HISTOGRAM as f64;
        return if width > 0.0 {
            (min, width, HISTOGRAM)
        } else {
            (min - 0.5, 1.0, 1)
        };
    }
    let span = max - min + 1.0;
    let step = (span / HISTOGRAM as f64).ceil().max(1.0);
    (min - 0.5, step, (span / step).ceil() as usize)
}

fn axis(axis: &Axis) -> Value {
    let shown = match axis {
        Axis::Fields(names) => &Axis::Fields(names.iter().take(MAX_VALUES).cloned().collect()),
        _ => axis,
    };
    serde_json::to_value(shown).unwrap_or_default()
}

fn encode(header: &impl Serialize, data: &[u8]) -> Bytes {
    let mut text = serde_json::to_vec(header).unwrap_or_default();
    text.resize(text.len().next_multiple_of(4), b' ');
    let lengths = [text.len(), data.len()].map(|length| (length as u32).to_le_bytes());
    [lengths.as_flattened(), &text, data].concat().into()
}

/// Returns the message that describes a ring without a frame. It also keeps a connection open while no frame is published.
pub(super) fn description(ring: &ScopedRing, view: &View) -> Bytes {
    let layout = &ring.layout;
    let header = json!({
        "ring": ring.ring.options().name, "type": layout.scalar.name(), "complex": layout.complex,
        "channel": view.channel, "channels": layout.channels.max(1), "parts": ring.parts(), "axis": axis(&layout.axis),
        "frame_points": ring.range(view.part, layout.points).len(),
    });
    encode(&header, &[])
}

/// Returns the message that reports why the ring cannot be read.
pub(super) fn failed(reason: &str) -> Bytes {
    encode(&json!({ "error": reason }), &[])
}
