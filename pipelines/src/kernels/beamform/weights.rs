//! The weights of the beams.

use super::super::antennas::Extents;
use super::super::half::rounded;
use super::super::npy;
use super::super::quantise::narrow;
use super::Beamform;
use daq_core::kernel::KernelError;
use daq_fft::Complex;
use std::f64::consts::TAU;
use std::path::Path;

/// Weights of (channel, beam, antenna), or of (beam, antenna) for all channels. The weights of a beam are the numbers here
/// multiplied by `factor`.
pub(super) struct Weights {
    pub(super) numbers: Box<[Complex<f32>]>,
    pub(super) factor: f64,
    /// Whether each channel has weights of its own.
    pub(super) by_channel: bool,
}

impl Weights {
    /// Reads or computes the weights. If `rounds` is true, they are rounded to float16.
    pub(super) fn read(
        keys: &Beamform,
        extents: &Extents,
        rounds: bool,
        directory: &Path,
    ) -> Result<Self, KernelError> {
        let (mut numbers, mut by_channel) = if let Some(path) = &keys.weights {
            from_file(keys, extents, path, directory)?
        } else {
            let mean = Complex::new(1.0 / extents.antennas as f64, 0.0);
            (vec![mean; keys.beams * extents.antennas], false)
        };
        if let Some(path) = &keys.delays {
            let phases = phases(keys, extents, path, directory)?;
            let weights = numbers.iter().cycle();
            numbers = phases.iter().zip(weights).map(|(a, b)| a * b).collect();
            by_channel = true;
        }
        let largest = numbers.iter().fold(0.0_f64, |largest, w| {
            largest.max(w.re.abs()).max(w.im.abs())
        });
        if !narrow(largest).is_finite() {
            return Err(KernelError::Refused(format!(
                "`weights`: the array contains {largest:?}, which is infinite as a float32 number; correct the file"
            )));
        }
        let factor = if rounds && largest > 0.0 {
            largest
        } else {
            1.0
        };
        let number = |x: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the kernel uses float32 weights"
            )]
            let x = (x / factor) as f32;
            if rounds { rounded(x) } else { x }
        };
        Ok(Self {
            numbers: numbers
                .iter()
                .map(|w| Complex::new(number(w.re), number(w.im)))
                .collect(),
            factor,
            by_channel,
        })
    }
}

/// Returns the weights in a file in the order (channel, beam, antenna), and whether each channel has weights of its own.
fn from_file(
    keys: &Beamform,
    extents: &Extents,
    path: &Path,
    directory: &Path,
) -> Result<(Vec<Complex<f64>>, bool), KernelError> {
    let array = npy::read("weights", path, directory)?;
    let (beams, channels, antennas) = (keys.beams, extents.channels, extents.antennas);
    if array.shape == [beams, antennas] {
        return Ok((array.numbers, false));
    }
    if array.shape != [beams, channels, antennas] {
        return Err(KernelError::Refused(format!(
            "`weights`: the array in {} has the shape {:?}, but the kernel needs [{beams}, {antennas}] or [{beams}, {channels}, \
             {antennas}] (beams, channels, antennas); change the file, `beams`, `channels` or `antennas`",
            path.display(),
            array.shape
        )));
    }
    let order = (0..channels).flat_map(|c| (0..beams).map(move |b| (b * channels + c) * antennas));
    let weights = order.flat_map(|start| array.numbers[start..start + antennas].iter().copied());
    Ok((weights.collect(), true))
}

/// Returns the phases of (channel, beam, antenna) that delay the antennas.
fn phases(
    keys: &Beamform,
    extents: &Extents,
    path: &Path,
    directory: &Path,
) -> Result<Vec<Complex<f64>>, KernelError> {
    let array = npy::read("delays", path, directory)?;
    if array.shape != [keys.beams, extents.antennas] || array.complex {
        return Err(KernelError::Refused(format!(
            "`delays`: the array in {} has the shape {:?}{}, but the kernel needs real delays of [{}, {}] (beams, antennas); \
             change the file, `beams` or `antennas`",
            path.display(),
            array.shape,
            if array.complex {
                " and complex numbers"
            } else {
                ""
            },
            keys.beams,
            extents.antennas
        )));
    }
    let first = keys.frequency.map_or(0.0, |frequency| frequency.0);
    let spacing = keys.spacing.map_or(0.0, |spacing| spacing.0);
    let phase = |channel: usize, delay: &Complex<f64>| {
        let turns = (first + channel as f64 * spacing) * delay.re;
        // Whole turns are removed first, because they are many.
        Complex::from_polar(1.0, -TAU * (turns - turns.round()))
    };
    let channels = 0..extents.channels;
    let phases =
        channels.flat_map(|channel| array.numbers.iter().map(move |delay| phase(channel, delay)));
    Ok(phases.collect())
}
