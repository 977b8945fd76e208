//! `select` passes on a part of each frame, and only some frames.
//!
//! | key | keeps |
//! |---|---|
//! | `parts` | some of the equal pieces that a frame consists of, such as the modules of a detector or the antennas of a telescope |
//! | `channels` | some channels, as a list or as a range with a step |
//! | `points` | some points of each channel, as a list or as a range with a step |
//! | `every` | every n-th frame |
//! | `drop` | frames without certain flags |
//!
//! The type and the order of the samples do not change. In interleaved order, or with one channel, parts divide the
//! points of a frame; in planar order they divide the channels. `channels` and `points` count within each part.
//!
//! A frame that `every` or `drop` excludes has no output and counts as `filtered` in the ledger. The outputs of
//! `every = n` are numbered 0, 1, 2, … so that their numbers have gaps only if frames are lost. If the points are samples
//! over time at a known rate, the timestamp of an output is that of its first sample.
//!
//! # Rate of the output
//! Equally spaced points have the rate of the input divided by their distance, and a single point per frame has the rate of the
//! frames. Other points have no rate: a list with different distances, or several parts that do not follow each other.
//!
//! With `every` above 1, or with points that do not cover the whole frame (`count` × `step` is less than its number of points),
//! the frames of the output do not continue each other, unless they have one point. `channelize`, and `power-spectrum` with
//! `continuous`, refuse such frames; place `select` behind them.
//!
//! CPU and GPU produce identical bytes. On a GPU, each run of consecutive frames needs one launch. Each thread writes 16
//! bytes at a time.

mod cpu;
mod cuda;
mod pieces;
#[cfg(test)]
mod tests;

use super::{device, not_empty, refused, require};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::frame::{Clock, Flags, FrameMeta, Timestamp};
use daq_core::kernel::{
    InputFacts, Kernel, KernelContext, KernelError, KernelFacts, KernelSpec, Side,
};
use daq_core::layout::{Axis, Layout, Order};
use pieces::{Pieces, Places};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, Visitor};
use std::fmt;

/// Registry entry of `select`.
pub const ENTRY: KernelEntry = KernelEntry::of::<Select>(
    "select",
    "Passes on some parts, channels, points and frames",
    "\
[kernel.NAME]
use = \"select\"
input = \"INPUT\"
output = \"OUTPUT\"
# Pieces of a frame to keep: a frame consists of `count` equal pieces, such as detector modules.
# parts = { count = 1, keep = [0] }
# Channels to keep (of each part), as a list or as a range: { first = 0, count = 1, step = 1 }.
# channels = [0]
# Points to keep (of each part), as a list or as a range.
# points = { first = 0, count = 1024, step = 2 }
# Keeps the frames whose number is a multiple of `every`.
# every = 1
# Drops frames with any of these flags: \"incomplete\", \"epoch\", \"truncated\", \"suspect\".
# drop = [\"incomplete\"]
",
);

/// The keys of a `select` kernel.
///
/// ```
/// use daq_core::kernel::KernelSpec;
/// use daq_core::layout::{Samples, Scalar};
/// use daq_pipelines::kernels::Select;
/// use daq_pipelines::kernels::select::{Indices, Range};
///
/// let input = Samples { scalar: Scalar::Uint16, channels: 4, ..Samples::default() }.layout(8192).unwrap();
/// let select = Select {
///     channels: Some(Indices::List(vec![3, 0])),
///     points: Some(Indices::Range(Range { first: 24, count: Some(100), step: 10 })),
///     ..Select::default()
/// };
/// let output = select.layout(&input)?;
/// assert_eq!((output.channels, output.points, output.frame_bytes()), (2, 100, 400));
/// # Ok::<(), daq_core::config::Problem>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Select {
    /// Pieces of a frame to keep, such as `{ count = 4, keep = [0, 2] }`: the frame consists of `count` pieces of equal
    /// size, of which those in `keep` (counted from 0) are passed on, in this order. In planar order with several
    /// channels, pieces consist of channels, otherwise of points. Default: a frame is one piece.
    pub parts: Option<Parts>,
    /// Channels to keep, of each part if parts divide channels: a list such as `[3, 0]`, which also sets their order, or
    /// a range such as `{ first = 8, count = 4, step = 2 }`. Default: all.
    pub channels: Option<Indices>,
    /// Points to keep, of each part if parts divide points: a list, or a range such as
    /// `{ first = 0, count = 1024, step = 2 }`. Default: all.
    pub points: Option<Indices>,
    /// Keeps the frames whose number is a multiple of this value; default 1, all frames. The number of an output is the
    /// number of its frame divided by this value.
    pub every: u64,
    /// Drops frames with any of these flags: `"incomplete"` (a packet is missing), `"epoch"` (the first frame after a
    /// restart of the sender), `"truncated"` (the stream began or ended inside the frame) and `"suspect"` (a check failed
    /// at the source). Default: none.
    pub drop: Vec<Flag>,
}

impl Default for Select {
    fn default() -> Self {
        Self {
            parts: None,
            channels: None,
            points: None,
            every: 1,
            drop: Vec::new(),
        }
    }
}

/// Equal pieces of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Number of pieces in a frame, at least 1.
    pub count: usize,
    /// The pieces to keep, counted from 0.
    pub keep: Vec<usize>,
}

/// Channels or points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Indices {
    /// These, in this order.
    List(Vec<usize>),
    /// A range.
    Range(Range),
}

/// A range of channels or points.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Range {
    /// The first index; default 0.
    pub first: usize,
    /// Number of indices, at least 1; default: up to the end.
    pub count: Option<usize>,
    /// Distance between two indices, at least 1; default 1.
    pub step: usize,
}

impl Default for Range {
    fn default() -> Self {
        Self {
            first: 0,
            count: None,
            step: 1,
        }
    }
}

/// A flag of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Flag {
    /// A packet is missing.
    Incomplete,
    /// The frame is the first of an epoch.
    Epoch,
    /// The stream began or ended inside the frame.
    Truncated,
    /// A check failed at the source.
    Suspect,
}

impl<'de> Deserialize<'de> for Indices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Indices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a list such as [0, 2] or a range such as { first = 0, count = 8, step = 1 }",
                )
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Indices, A::Error> {
                let mut indices = Vec::new();
                while let Some(index) = list.next_element()? {
                    indices.push(index);
                }
                Ok(Indices::List(indices))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Indices, A::Error> {
                Range::deserialize(MapAccessDeserializer::new(map)).map(Indices::Range)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Indices {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Indices".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let (list, range) = (
            generator.subschema_for::<Vec<usize>>(),
            generator.subschema_for::<Range>(),
        );
        schemars::json_schema!({ "anyOf": [list, range] })
    }
}

/// Decides which frames are kept, and with which metadata.
#[derive(Clone, Copy, Debug)]
struct Choice {
    every: u64,
    drop: Flags,
    /// Duration between the first sample of a frame and the first sample of its output, in nanoseconds.
    delay_ns: u64,
}

impl Choice {
    /// Returns the metadata of the output of a frame; `None` if the frame is filtered.
    fn choose(&self, meta: &FrameMeta) -> Option<FrameMeta> {
        let is_dropped = meta.flags.0 & self.drop.0 != 0;
        if is_dropped || !meta.sequence.is_multiple_of(self.every) {
            return None;
        }
        let delay = if meta.timestamp.clock == Clock::None {
            0
        } else {
            self.delay_ns
        };
        Some(FrameMeta {
            sequence: meta.sequence / self.every,
            timestamp: Timestamp {
                ns: meta.timestamp.ns.saturating_add(delay),
                ..meta.timestamp
            },
            ..*meta
        })
    }
}

/// The selection in frames of one layout.
struct Selection {
    output: Layout,
    pieces: Pieces,
    choice: Choice,
}

/// Rejects indices that occur twice.
fn distinct(list: &[usize], key: &str) -> Result<(), Problem> {
    let twice = (1..list.len()).find(|i| list[..*i].contains(&list[*i]));
    match twice {
        None => Ok(()),
        Some(i) => {
            Err(Problem::at(key, format!("{} is listed twice", list[i]))
                .help("list each index once"))
        }
    }
}

impl Indices {
    fn check(&self, key: &str) -> Result<(), Problem> {
        match self {
            Self::List(list) => {
                require(
                    !list.is_empty(),
                    key,
                    format!("`{key}` is empty"),
                    "list at least one index, or remove the key to keep all",
                )?;
                distinct(list, key)
            }
            Self::Range(range) => require(
                range.step > 0 && range.count != Some(0),
                key,
                "`count` and `step` of a range must be at least 1",
                "write at least 1",
            ),
        }
    }

    /// Returns the places of these of `available` indices.
    fn places(this: Option<&Self>, available: usize, key: &str) -> Result<Places, Problem> {
        let places = match this {
            None => Places::range(0, available, 1),
            Some(Self::List(list)) => Places::list(list.clone()),
            Some(Self::Range(Range { first, count, step })) => {
                let rest = available.saturating_sub(*first);
                Places::range(
                    *first,
                    count.unwrap_or(rest.div_ceil((*step).max(1))),
                    *step,
                )
            }
        };
        require(
            places.count() > 0 && places.last().is_some_and(|last| last < available),
            key,
            format!(
                "`{key}` selects up to index {}, but there are only {available}",
                places.last().unwrap_or(usize::MAX)
            ),
            format!("select indices from 0 to {}", available.saturating_sub(1)),
        )?;
        Ok(places)
    }
}

impl Select {
    /// Checks everything that does not depend on the input.
    fn check(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut add = |checked: Result<(), Problem>| found.extend(checked.err());
        for (key, indices) in [("channels", &self.channels), ("points", &self.points)] {
            add(indices
                .as_ref()
                .map_or(Ok(()), |indices| indices.check(key)));
        }
        if let Some(parts) = &self.parts {
            add(require(
                parts.keep.iter().all(|part| *part < parts.count) && !parts.keep.is_empty(),
                "parts.keep",
                format!(
                    "`keep` must list parts from 0 to {}",
                    parts.count.saturating_sub(1)
                ),
                "list the parts to keep, or raise `count`",
            ));
            add(distinct(&parts.keep, "parts.keep"));
        }
        add(require(
            self.every >= 1,
            "every",
            "`every` must be at least 1",
            "write 1 to keep all frames",
        ));
        found
    }

    /// Computes the selection in frames with the layout `input`.
    fn selection(&self, input: &Layout) -> Result<Selection, Problem> {
        not_empty(input)?;
        if let Some(problem) = self.check().into_iter().next() {
            return Err(problem);
        }
        let (channels, points) = (input.channels as usize, input.points);
        let is_planar = input.order == Order::Planar && channels > 1;
        let parts = self.parts.as_ref();
        let count = parts.map_or(1, |parts| parts.count);
        let (divided, what) = if is_planar {
            (channels, "channels")
        } else {
            (points, "points")
        };
        require(
            divided.is_multiple_of(count),
            "parts.count",
            format!("{count} parts do not divide the {divided} {what} of a frame"),
            format!("set a divisor of {divided}"),
        )?;
        let size = divided / count;
        let (channels_each, points_each) = if is_planar {
            (size, points)
        } else {
            (channels, size)
        };
        let channel_places = Indices::places(self.channels.as_ref(), channels_each, "channels")?;
        let point_places = Indices::places(self.points.as_ref(), points_each, "points")?;
        let keep = parts.map_or(&[0][..], |parts| &parts.keep);
        let (channel_places, point_places) = if is_planar {
            (channel_places.in_parts(keep, size), point_places)
        } else {
            (channel_places, point_places.in_parts(keep, size))
        };
        let bits = input.sample_bits();
        let (outer, inner, pitch) = if is_planar {
            (&channel_places, &point_places, points * bits)
        } else {
            (&point_places, &channel_places, channels * bits)
        };
        let pieces = Pieces::new(outer.scaled(pitch), inner.scaled(bits), [pitch, bits]).ok_or_else(|| {
            let message = format!("the selection begins or ends inside a byte of packed {} samples", input.scalar);
            Problem::at("input", message).help(
                "put a kernel with `use = \"convert\"` before it, or select whole groups of packed samples",
            )
        })?;
        let every = self.every as f64;
        Ok(Selection {
            choice: Choice {
                every: self.every,
                drop: self.flags(),
                delay_ns: delay_ns(input, point_places.at(0)),
            },
            output: Layout {
                channels: super::parameters::small(channel_places.count()),
                points: point_places.count(),
                axis: axis(input, &point_places, &channel_places, every),
                frame_rate: input.frame_rate.map(|rate| rate / every),
                is_contiguous: self.is_contiguous(input, &point_places),
                ..input.clone()
            },
            pieces,
        })
    }

    /// Returns whether the frames of the output continue each other: they are single points, or `points` are equally spaced over
    /// the whole of every frame. Missing numbers of frames show which frames `drop` excludes.
    fn is_contiguous(&self, input: &Layout, points: &Places) -> bool {
        let covers = |step: usize| points.count() * step == input.points;
        points.count() == 1
            || input.is_contiguous && self.every == 1 && points.step().is_some_and(covers)
    }

    /// Returns the flags of frames to drop.
    fn flags(&self) -> Flags {
        self.drop.iter().fold(Flags::default(), |flags, flag| {
            flags.with(match flag {
                Flag::Incomplete => Flags::INCOMPLETE,
                Flag::Epoch => Flags::EPOCH,
                Flag::Truncated => Flags::TRUNCATED,
                Flag::Suspect => Flags::SUSPECT,
            })
        })
    }
}

/// Returns the duration of `points` points in nanoseconds; 0 if their rate is unknown.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "durations are not negative"
)]
fn delay_ns(input: &Layout, points: usize) -> u64 {
    input
        .sample_rate()
        .filter(|rate| *rate > 0.0)
        .map_or(0, |rate| (points as f64 / rate * 1e9).round() as u64)
}

/// Returns the axis of the selected points and channels of every `every`-th frame.
fn axis(input: &Layout, points: &Places, channels: &Places, every: f64) -> Axis {
    let step = points.step();
    match &input.axis {
        // Single points are as far apart as the frames.
        Axis::Time { .. } if points.count() == 1 => Axis::Time {
            rate: input.rate_of_points(1).map(|rate| rate / every),
        },
        Axis::Time { rate } => Axis::Time {
            rate: rate.zip(step).map(|(rate, step)| rate / step as f64),
        },
        Axis::Frequency {
            start,
            step: between,
        } => Axis::Frequency {
            start: start
                .zip(*between)
                .filter(|_| step.is_some())
                .map(|(start, between)| start + points.at(0) as f64 * between),
            step: between
                .zip(step)
                .map(|(between, step)| between * step as f64),
        },
        // The selected pixels are not an image.
        Axis::Pixels(_) if step != Some(1) || points.at(0) != 0 => Axis::Time { rate: None },
        Axis::Pixels(image) if points.count() == image.pixels() => {
            let selected: Vec<_> = (0..channels.count()).map(|i| channels.at(i)).collect();
            Axis::Pixels(image.with_channels(input.channels as usize, &selected))
        }
        Axis::Pixels(_) => Axis::Time { rate: None },
        Axis::Fields(names) => Axis::Fields(
            (0..points.count())
                .filter_map(|i| names.get(points.at(i)).cloned())
                .collect(),
        ),
    }
}

impl KernelSpec for Select {
    fn problems(&self) -> Vec<Problem> {
        self.check()
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        Ok(self.selection(input)?.output)
    }

    fn facts(&self) -> KernelFacts {
        let reason =
            "with `every` or `drop`, one GPU could keep no frame while others wait for its frames";
        KernelFacts {
            spread_frames: if self.every > 1 || !self.drop.is_empty() {
                Err(reason.to_owned())
            } else {
                Ok(())
            },
            ..KernelFacts::default()
        }
    }

    fn input_facts(&self, input: &Layout) -> InputFacts {
        let selection = self.selection(input);
        let memory = selection.map_or(0, |selection| selection.pieces.memory());
        InputFacts {
            runs_on_gpu: device::can_count(input),
            memory,
            device_memory: memory,
            ..InputFacts::default()
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let selection = self.selection(&context.input).map_err(refused)?;
        let input_bytes = context.input.frame_bytes();
        match context.side {
            Side::Cpu => Ok(cpu::build(input_bytes, selection)),
            Side::Cuda(ordinal) => cuda::build(ordinal, input_bytes, &selection),
        }
    }
}
