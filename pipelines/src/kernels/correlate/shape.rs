//! The sizes of frames and outputs.

use super::super::antennas::Extents;
use super::super::require;
use super::Correlate;
use daq_core::config::Problem;
use daq_core::layout::Layout;

/// Sizes derived from the keys and the input layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) extents: Extents,
    /// Number of times of an item, which is the part of a frame that belongs to one output.
    pub(super) length: usize,
    /// Number of items per frame.
    pub(super) items: usize,
    /// Number of items per output.
    pub(super) each: u64,
}

impl Shape {
    pub(super) fn new(keys: &Correlate, input: &Layout) -> Result<Self, Problem> {
        let extents = Extents::new(keys.antennas, keys.channels, keys.axes, input)?;
        let Extents {
            antennas, times, ..
        } = extents;
        require(
            antennas <= 1 << 15,
            "antennas",
            format!("{antennas} antennas are too many"),
            "write at most 32768",
        )?;
        let integrate = keys.integrate.unwrap_or(times as u64);
        let per_frame = times as u64;
        require(
            per_frame.is_multiple_of(integrate) || integrate.is_multiple_of(per_frame),
            "integrate",
            format!("`integrate` is {integrate}, but a frame has {times} times"),
            "write a divisor or a multiple of the number of times of a frame",
        )?;
        let length = usize::try_from(integrate.min(per_frame)).unwrap_or(times);
        Ok(Self {
            extents,
            length,
            items: times / length,
            each: (integrate / per_frame).max(1),
        })
    }

    /// Returns the number of times per output.
    pub(super) const fn all_times(&self) -> u64 {
        self.length as u64 * self.each
    }

    /// Returns the number of pairs of antennas, including each antenna with itself.
    pub(super) const fn baselines(&self) -> usize {
        self.extents.antennas * (self.extents.antennas + 1) / 2
    }
}
