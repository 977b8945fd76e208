//! Reduces a frame to the message that a browser shows.
//!
//! ```text
//!   header bytes (u32) | data bytes (u32) | header: JSON, padded with spaces | data: float32 … |     all little-endian
//! ```

use super::ScopedRing;
use super::decode::Samples;
use super::pixels::{Mean, Pixels};
use super::points::{Block, Points, column_of};
use super::spectrum::Transform;
use super::view::View;
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
/// Maximum number of rows and columns of an image.
pub(super) const IMAGE: (usize, usize) = (384, 512);
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
    block: Block,
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
            block: Block {
                re: Vec::new(),
                im: Vec::new(),
            },
        }
    }

    pub(super) const fn view(&self) -> &View {
        &self.view
    }

    /// Returns the size of the buffers for decoded points in bytes.
    #[cfg(test)]
    pub(super) const fn buffers(&self) -> usize {
        (self.block.re.capacity() + self.block.im.capacity()) * size_of::<f32>()
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
        let shown = Points::of(samples, channel, range.clone());
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
            missing: shown
                .gaps()
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
                let count = shown.len().min(MAX_VALUES);
                shown.read(0..count, &mut self.block);
                arrays.push("values", &[count], self.block.re.iter().copied());
            }
            Axis::Time { rate } => {
                self.curve(&shown, first..first + points, layout.complex, &mut arrays);
                header.spectrum =
                    self.spectrum(&shown, *rate, full_scale, layout.complex, &mut arrays);
                header.histogram = self.histogram(
                    &shown,
                    layout.scalar,
                    full_scale,
                    layout.complex,
                    &mut arrays,
                );
                header.image = self.image(ring, shown, is_wanted, &mut arrays);
            }
            Axis::Pixels(image) => {
                header.histogram = self.histogram(
                    &shown,
                    layout.scalar,
                    full_scale,
                    layout.complex,
                    &mut arrays,
                );
                header.image = match self.view.row {
                    Some(_) => self.image(ring, shown, is_wanted, &mut arrays),
                    None => self.pixels(image, samples, range, is_wanted, &mut arrays),
                };
            }
            Axis::Frequency { .. } => {
                let columns = shown.len().min(BINS);
                if layout.complex {
                    self.phases(&shown, columns, &mut arrays);
                }
                let shown = shown.power();
                let mut maxima = vec![f32::NAN; columns];
                shown.each_column(0..shown.len(), columns, &mut self.block, |i, re, _| {
                    maxima[i] = maxima[i].max(extremes(re).1);
                });
                arrays.push("waterfall", &[1, columns], maxima);
                header.histogram =
                    self.histogram(&shown, Scalar::Float32, full_scale, false, &mut arrays);
                header.image = self.image(ring, shown, is_wanted, &mut arrays);
            }
        }
        header.arrays = std::mem::take(&mut arrays.names);
        encode(&header, &arrays.data)
    }

    /// Adds the phase of each column of complex bins in degrees: that of the sum of its values. NaN without a value.
    fn phases(&mut self, shown: &Points<'_>, columns: usize, arrays: &mut Arrays) {
        let mut sums = vec![(0.0_f32, 0.0_f32); columns];
        let known = |values: &[f32]| -> f32 { values.iter().filter(|value| !value.is_nan()).sum() };
        shown.each_column(0..shown.len(), columns, &mut self.block, |i, re, im| {
            let (sum_re, sum_im) = &mut sums[i];
            (*sum_re, *sum_im) = (*sum_re + known(re), *sum_im + known(im));
        });
        let phase = |(re, im): (f32, f32)| {
            if re == 0.0 && im == 0.0 {
                f32::NAN
            } else {
                im.atan2(re).to_degrees()
            }
        };
        arrays.push("phase", &[columns], sums.into_iter().map(phase));
    }

    /// Adds the minimum and the maximum of each column of a curve.
    fn curve(
        &mut self,
        shown: &Points<'_>,
        range: Range<usize>,
        complex: bool,
        arrays: &mut Arrays,
    ) {
        let columns = range.len().min(self.view.width);
        let empty = vec![(f32::NAN, f32::NAN); columns];
        let (mut re, mut im) = (empty.clone(), empty);
        shown.each_column(range, columns, &mut self.block, |i, real, imaginary| {
            widen(&mut re[i], extremes(real));
            widen(&mut im[i], extremes(imaginary));
        });
        let curves = [("min", "max", re), ("min_im", "max_im", im)];
        for (min, max, columns_of) in curves.into_iter().take(if complex { 2 } else { 1 }) {
            arrays.push(min, &[columns], columns_of.iter().map(|(min, _)| *min));
            arrays.push(max, &[columns], columns_of.iter().map(|(_, max)| *max));
        }
    }

    /// Adds the spectrum and the rows of the waterfall. Returns the axis of the bins; `None` if there are too few samples.
    fn spectrum(
        &mut self,
        shown: &Points<'_>,
        rate: Option<f64>,
        full_scale: f64,
        complex: bool,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let size = self.view.transform_size(shown.len())?;
        let transform = self
            .transform
            .take()
            .filter(|transform| transform.size() == size);
        let mut transform = transform.unwrap_or_else(|| Transform::new(size, complex));
        let spectra = transform.spectra(shown, &mut self.block, full_scale);
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

    /// Adds the number of values per bin. Complex points have two values. Returns the bins and the statistics.
    fn histogram(
        &mut self,
        shown: &Points<'_>,
        scalar: Scalar,
        full_scale: f64,
        complex: bool,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let values = if complex { 2 } else { 1 };
        let total = shown.len() * values;
        let masked = shown.gaps().map(|gap| gap.len()).sum::<usize>() * values;
        let all = 0..shown.len();
        let (mut count, mut sum, mut squares) = (0_usize, 0.0, 0.0);
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        shown.each(all.clone(), &mut self.block, |_, block| {
            for value in finite(block) {
                count += 1;
                sum += value;
                squares += value * value;
                min = min.min(value);
                max = max.max(value);
            }
        });
        if count == 0 {
            return None;
        }
        let limits = limits(scalar, full_scale, self.view.full_scale.is_some());
        let (start, step, bins) = bins(scalar.is_float(), min, max);
        let mut counts = vec![0_u32; bins];
        let (mut low, mut high) = (0_u64, 0_u64);
        shown.each(all, &mut self.block, |_, block| {
            for value in finite(block) {
                counts[(((value - start) / step) as usize).min(bins - 1)] += 1;
                if let Some((floor, ceiling)) = limits {
                    low += u64::from(floor.is_some_and(|floor| value <= floor));
                    high += u64::from(value >= ceiling);
                }
            }
        });
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

    /// Adds the image that the modules of a frame form. Returns its kind and size in pixels.
    fn pixels(
        &mut self,
        image: &Image,
        samples: &Samples<'_>,
        range: Range<usize>,
        is_wanted: &dyn Fn() -> bool,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let pixels = Pixels::new(image, samples, range, self.view.channel);
        let means = pixels.means(&mut self.block, is_wanted)?;
        arrays.push("image", &pixels.shape(), means);
        Some(pixels.describe())
    }

    /// Adds an image: the rows of the frame, if `row` is set, or its channels. Returns its kind and size in pixels.
    fn image(
        &mut self,
        ring: &ScopedRing,
        shown: Points<'_>,
        is_wanted: &dyn Fn() -> bool,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let row = self.view.row;
        match row.filter(|row| *row > 1 && *row <= shown.len()) {
            Some(row) => Some(self.rows(&shown.power(), row, arrays)),
            None => self.channels(ring, &shown, is_wanted, arrays),
        }
    }

    /// Adds the image of all rows of `row` points. Returns its kind and size in pixels.
    fn rows(&mut self, shown: &Points<'_>, row: usize, arrays: &mut Arrays) -> Value {
        let lines = shown.len() / row;
        let (rows, columns) = (lines.min(IMAGE.0), row.min(IMAGE.1));
        let mut means = vec![Mean::default(); rows * columns];
        shown.each(0..lines * row, &mut self.block, |first, block| {
            for (point, value) in (first..).zip(&block.re) {
                let down = column_of(point / row, rows, lines);
                let across = column_of(point % row, columns, row);
                means[down * columns + across].add(*value);
            }
        });
        arrays.push("image", &[rows, columns], means.iter().map(Mean::value));
        json!({ "kind": "rows", "pixels": [lines, row], "channel": self.view.channel })
    }

    /// Adds the image of all channels: one row for each channel. Returns its kind and size in pixels.
    fn channels(
        &mut self,
        ring: &ScopedRing,
        shown: &Points<'_>,
        is_wanted: &dyn Fn() -> bool,
        arrays: &mut Arrays,
    ) -> Option<Value> {
        let is_time = matches!(ring.layout.axis, Axis::Time { .. });
        let is_real = !ring.layout.complex;
        let channels = shown.channels();
        if channels < if is_time { MIN_CHANNELS } else { 2 } {
            return None;
        }
        let (rows, columns) = (channels.min(IMAGE.0), shown.len().min(IMAGE.1));
        let mut image = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            if !is_wanted() {
                return None;
            }
            // Of more channels than rows, only some are shown.
            let points = shown.of_channel(row * channels / rows).power();
            let mut cells = vec![(Mean::default(), f32::NAN); columns];
            points.each_column(0..points.len(), columns, &mut self.block, |i, re, _| {
                let (mean, max) = &mut cells[i];
                if is_time {
                    let powers = re
                        .iter()
                        .map(|value| if is_real { value * value } else { *value });
                    powers.for_each(|power| mean.add(power));
                } else {
                    *max = max.max(extremes(re).1);
                }
            });
            image.extend(cells.iter().map(
                |(mean, max)| {
                    if is_time { mean.value().sqrt() } else { *max }
                },
            ));
        }
        arrays.push("image", &[rows, columns], image);
        Some(json!({ "kind": "channels", "pixels": [channels, shown.len()] }))
    }
}

/// Returns all finite values of a block.
fn finite(block: &Block) -> impl Iterator<Item = f64> {
    let values = block.re.iter().chain(&block.im).copied();
    values.filter(|value| value.is_finite()).map(f64::from)
}

/// Extends a minimum and a maximum by those of other values.
fn widen(range: &mut (f32, f32), (min, max): (f32, f32)) {
    *range = (range.0.min(min), range.1.max(max));
}

/// Returns the minimum and the maximum; NaN if every value is NaN.
fn extremes(values: &[f32]) -> (f32, f32) {
    let nan = (f32::NAN, f32::NAN);
    values
        .iter()
        .fold(nan, |(min, max), value| (min.min(*value), max.max(*value)))
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
