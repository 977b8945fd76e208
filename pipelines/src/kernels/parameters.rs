//! The parameters of the built-in kernels: structures that host and device code share.
//!
//! From the definitions here, a test writes the header `generated/parameters.cuh`, which the device code includes. When
//! the device code is compiled, the header checks the size of each structure and the offset of each field.
//!
//! A kernel declares the fields of its structure as separate parameters, because the compiler specialises loops for the
//! values of such parameters, but not for the fields of a structure. The header defines both macros for that:
//! `STRUCTURE_PARAMETERS` is the list of parameters, and `STRUCTURE_GIVEN` is the structure made from them.

use daq_core::gpu::driver::Argument;
use daq_core::layout::Scalar;
use daq_core::ring::Slice;
use std::slice::IterMut;

/// A part of a kernel's parameters: a number, or a structure.
trait Parameter {
    /// Number of arguments.
    const COUNT: usize;

    /// Writes the arguments to the next places.
    fn write(&self, places: &mut IterMut<'_, Argument>);
}

macro_rules! number {
    ($($kind:ident $variant:ident),*) => {$(
        impl Parameter for $kind {
            const COUNT: usize = 1;

            fn write(&self, places: &mut IterMut<'_, Argument>) {
                if let Some(place) = places.next() {
                    *place = Argument::$variant(*self);
                }
            }
        }
    )*};
}

number! { u32 U32, u64 U64, f64 F64 }

/// Defines structures, and their descriptions for the header. `as` gives the type of an address in device code.
macro_rules! parameters {
    ($(
        $(#[doc = $about:literal])*
        $name:ident {
            $($(#[doc = $purpose:literal])* $field:ident: $kind:ident $(as $pointer:literal)?,)*
        }
    )*) => {
        $(
            $(#[doc = $about])*
            #[derive(Clone, Copy, Debug, Default, PartialEq)]
            #[repr(C)]
            pub struct $name {
                $($(#[doc = $purpose])* pub $field: $kind,)*
            }

            impl Parameter for $name {
                const COUNT: usize = 0 $(+ <$kind>::COUNT)*;

                fn write(&self, places: &mut IterMut<'_, Argument>) {
                    $(self.$field.write(places);)*
                }
            }

            impl $name {
                /// Returns the arguments of a launch: all fields in order.
                pub fn arguments(&self) -> [Argument; <Self as Parameter>::COUNT] {
                    let mut arguments = [Argument::U32(0); <Self as Parameter>::COUNT];
                    self.write(&mut arguments.iter_mut());
                    arguments
                }
            }
        )*

        /// Descriptions of all structures, in the order of their definition.
        #[cfg(test)]
        const STRUCTURES: &[tests::Structure] = &[$(tests::Structure {
            about: &[$($about),*],
            name: stringify!($name),
            bytes: size_of::<$name>(),
            fields: &[$(tests::Field {
                // An address has the type that `as` gives.
                types: &[stringify!($kind) $(, $pointer)?],
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
            }),*],
        }),*];
    };
}

parameters! {
    /// Consecutive slots of a ring: frame `i` is in slot `(first + i) % slots`.
    RingSlots {
        /// Address of the first slot of the ring.
        base: u64,
        /// Distance between slots in bytes.
        stride: u64,
        /// Number of slots of the ring.
        slots: u32,
        /// Slot of frame 0.
        first: u32,
    }

    /// Divides a run of items (spectra or frames) into outputs. The first output consists of the next `left` items,
    /// which complete it. Each further output consists of `each` items; the last output may remain incomplete.
    Cut {
        /// Number of items of the run.
        total: u64,
        /// Number of items that complete the first output.
        left: u64,
        /// Number of items per further output.
        each: u64,
    }

    /// Parameters of `convert_straight` and `convert_tiles`.
    Conversion {
        /// The input.
        from: RingSlots,
        /// The output.
        to: RingSlots,
        /// Factor for every value.
        factor: f64,
        /// Offset that is added to every product.
        offset: f64,
        /// Number of points per channel and frame.
        points: u64,
        /// Number of channels.
        channels: u32,
        /// Number of values per sample: 2 for complex samples, otherwise 1.
        parts: u32,
        /// Type of the values of the input.
        scalar: u32,
        /// Number of points of a tile.
        tile_points: u32,
        /// Number of channels of a tile.
        wide: u32,
        /// 1 if the output is planar, 0 if it is interleaved.
        planar: u32,
        /// The sign bit of a packed signed type, otherwise 0.
        sign: u32,
    }

    /// Numbers in groups: number `i` is `bases[i / each] + i % each * step`.
    Places {
        /// The first number of each group.
        bases: u64 as "const u32*",
        /// Count of numbers of a group.
        each: u32,
        /// Distance between the numbers of a group.
        step: u32,
        /// Count of all numbers.
        count: u32,
    }

    /// Parameters of `select_bytes`. The output consists of pieces of `run` bytes: piece `i` is at
    /// `outer[i / inner.count] + inner[i % inner.count]` of the input.
    Selection {
        /// The input.
        from: RingSlots,
        /// The output.
        to: RingSlots,
        /// Places along the slower axis, in bytes.
        outer: Places,
        /// Places along the faster axis, in bytes.
        inner: Places,
        /// Number of bytes of a piece.
        run: u32,
        /// Number of bytes of an output.
        bytes: u32,
        /// Number of bytes that are copied together: a power of two up to 16 that divides all places and `run`.
        word: u32,
    }

    /// Statistics of the values of one channel, as sums.
    Tally {
        /// Number of values without NaNs.
        count: u64,
        /// Number of clipped values.
        clip: u64,
        /// Smallest value.
        min: f64,
        /// Largest value.
        max: f64,
        /// Sum of all values.
        sum: f64,
        /// Sum of the squares of all values.
        squares: f64,
    }

    /// Bins of equal width, with the same edges as in numpy.histogram.
    Bins {
        /// Lower edge of the first bin.
        low: f64,
        /// Upper edge of the last bin.
        high: f64,
        /// Number of bins per unit.
        per_unit: f64,
        /// Lower edge of each bin, and the upper edge of the last bin.
        edges: u64 as "const double*",
        /// Number of bins; 0 without a histogram.
        count: u32,
        /// 1 if rounding can assign a value close to an edge to the wrong bin, so that the bin must be checked.
        rounds: u32,
    }

    /// Parameters of `stats_numbers`, `stats_codes` and `stats_finish`.
    Statistics {
        /// The input.
        from: RingSlots,
        /// The output.
        to: RingSlots,
        /// Division of the frames into outputs.
        cut: Cut,
        /// The histogram.
        bins: Bins,
        /// Number of points per channel and frame.
        points: u64,
        /// Distance between two points in samples.
        point_step: u64,
        /// Distance between two channels in samples.
        channel_step: u64,
        /// Number of values per part of a channel of a frame.
        chunk: u64,
        /// Values at or below `low`, or at or above `high`, are clipped.
        low: f64,
        /// See `low`.
        high: f64,
        /// Tallies of all parts of the round.
        partial: u64 as "Tally*",
        /// Tallies of the outputs in progress, one set per buffer.
        kept: u64 as "Tally*",
        /// Histograms of the outputs in progress, one set per buffer.
        counts: u64 as "u64*",
        /// Number of buffers.
        buffers: u32,
        /// Buffer of the first output.
        buffer: u32,
        /// Number of parts per channel of a frame.
        pieces: u32,
        /// Number of channels.
        channels: u32,
        /// Number of values per sample: 2 for complex samples, otherwise 1.
        parts: u32,
        /// Type of the values.
        scalar: u32,
        /// 1 if histograms are first counted in shared memory.
        in_shared: u32,
        /// Number of outputs that the round completes.
        complete: u32,
    }

    /// Parameters of `power_spectrum_join`, which appends the rows of frames to the rows of a buffer.
    Joining {
        /// The frames.
        from: RingSlots,
        /// Address in the first row of the buffer.
        to: u64,
        /// Size of a row of a frame in bytes.
        row: u64,
        /// Distance between the rows of a frame in bytes.
        from_pitch: u64,
        /// Distance between the rows of the buffer in bytes.
        to_pitch: u64,
        /// Number of rows.
        rows: u32,
        /// Number of bytes that a thread copies at a time, to which all addresses are aligned.
        word: u32,
    }

    /// Transforms of one length that a block performs side by side.
    Transforms {
        /// The roots of unity `exp(-2 pi i k / size)`.
        roots: u64 as "const Complex*",
        /// The radices of the passes with four bits each; the first pass is in the lowest bits.
        radices: u64,
        /// Number of points.
        size: u32,
        /// Number of transforms per block.
        count: u32,
        /// Number of points between the two buffers of a block; 0 with one buffer.
        second: u32,
    }

    /// Parameters of all kernels of `power-spectrum`. Spectrum `s` of a round is spectrum `origin + s`, counted from
    /// the first frame of `from`.
    Spectra {
        /// The input.
        from: RingSlots,
        /// The output.
        to: RingSlots,
        /// Division of the spectra into outputs.
        cut: Cut,
        /// The transforms of whole blocks or, for long transforms, of the rows.
        rows: Transforms,
        /// The transforms of the columns of long transforms.
        columns: Transforms,
        /// The roots of unity of long transforms.
        all_roots: u64 as "const Complex*",
        /// The window.
        window: u64 as "const float*",
        /// Memory for the means to subtract; null if no mean is subtracted.
        means: u64 as "Complex*",
        /// Memory for the transformed columns.
        work: u64 as "Complex*",
        /// Memory for the sums of the pieces.
        partial: u64 as "float*",
        /// Sums of earlier rounds for the first output; null without such sums.
        carried: u64 as "const double*",
        /// Memory for the sums of an output that remains incomplete.
        carry: u64 as "double*",
        /// Distance between two points in samples.
        point_step: u64,
        /// Distance between two channels in samples.
        channel_step: u64,
        /// Distance between the starts of two blocks in points.
        hop: u64,
        /// Number of spectra per channel and frame.
        spectra: u64,
        /// Spectrum of the first frame with which the round begins.
        origin: u64,
        /// Number of spectra per piece.
        chunk: u64,
        /// Factor by which a finished sum is multiplied.
        factor: f64,
        /// Maximum number of pieces per output.
        pieces: u32,
        /// Number of channels.
        channels: u32,
        /// Type of the values.
        scalar: u32,
        /// 1 for complex samples.
        complex: u32,
        /// Number of points of a block. Transforms are padded with zeros.
        block: u32,
        /// Number of points per channel in an output.
        bins: u32,
        /// Number of values per set of partial sums.
        width: u32,
        /// Number of outputs that the round completes.
        complete: u32,
        /// Bins 1 to `doubled` - 1 are doubled.
        doubled: u32,
        /// 1 if the output is in decibels.
        db: u32,
        /// 1 if each output of the round has one piece and is complete, so that no partial sums are needed.
        direct: u32,
        /// For medians, the number of spectra per output: `partial` contains all spectra of some outputs. 0 for means.
        history: u32,
        /// Number of outputs for which `partial` has space, and the space of the first output.
        spaces: u32,
        /// See `spaces`.
        space: u32,
        /// Number of spectra of the first output that earlier rounds have written.
        pending: u32,
    }

    /// Parameters of the kernels of `channelize`. A point is a complex sample or two successive real samples.
    Polyphase {
        /// The input, planar.
        from: RingSlots,
        /// The output.
        to: RingSlots,
        /// The coefficients of the prototype filter, for real samples times 0.5.
        coefficients: u64 as "const float*",
        /// The roots of unity `exp(-pi i k / channels)`.
        roots: u64 as "const Complex*",
        /// The points before the run, those of an input after each other.
        history: u64 as "const u8*",
        /// Memory for the points before the next run.
        kept: u64 as "u8*",
        /// Number of points per input and frame.
        points: u32,
        /// Number of points between the starts of two spectra.
        hop: u32,
        /// Number of points per input in `history`.
        before: u32,
        /// Number of taps.
        taps: u32,
        /// Number of spectra per frame.
        spectra: u32,
        /// Number of inputs.
        inputs: u32,
        /// Number of frames of the run.
        frames: u32,
        /// Number of sets of successive spectra per input.
        sets: u32,
        /// Number of sets per block.
        count: u32,
        /// Number of the first point of the run's first window, modulo the number of channels.
        phase: u32,
        /// Type of the values.
        scalar: u32,
        /// 1 for complex samples.
        complex: u32,
        /// Type of the output's real and imaginary parts.
        kind: u32,
        /// 1 if the filter is symmetric and the number of taps is a multiple of 8.
        symmetric: u32,
    }

    /// Parameters of the kernels of `correlate`. Item `q` of a round is item `origin + q`, counted from the first frame of
    /// `from`.
    Correlation {
        /// The input, with the samples of an antenna and channel after each other.
        from: RingSlots,
        /// The output.
        to: RingSlots,
        /// Division of the items into outputs.
        cut: Cut,
        /// Sums of earlier rounds for the first output; null without such sums.
        carried: u64 as "const double*",
        /// Memory for the sums of an output that remains incomplete.
        carry: u64 as "double*",
        /// Distance between two antennas in samples.
        antenna_step: u64,
        /// Distance between two channels in samples.
        channel_step: u64,
        /// Item of the first frame with which the round begins.
        origin: u64,
        /// Number of items per frame.
        items: u64,
        /// Factor for float32 outputs.
        scale: f64,
        /// Number of samples of an item.
        length: u32,
        /// Number of antennas.
        antennas: u32,
        /// Number of tiles of baselines.
        tiles: u32,
        /// Type of the values.
        scalar: u32,
        /// Type of the output's real and imaginary parts.
        kind: u32,
        /// Number of outputs that the round completes.
        complete: u32,
    }

    /// Parameters of `reorder_samples`. The axes are time, the axis whose elements are neighbours in the input, and a
    /// third axis. Steps are in samples.
    Reordering {
        /// The input.
        from: RingSlots,
        /// The output, in which times are neighbours.
        to: RingSlots,
        /// Distance between two elements of the third axis in the input.
        slow_step: u64,
        /// Distance between two times in the input.
        time_step: u64,
        /// Distance between two elements of the fastest axis in the output.
        to_fast_step: u64,
        /// Distance between two elements of the third axis in the output.
        to_slow_step: u64,
        /// Number of elements of the fastest axis.
        fast: u32,
        /// Number of times.
        times: u32,
        /// Size of a complex sample in bytes.
        bytes: u32,
    }

    /// Parameters of the kernels of `beamform`.
    Beams {
        /// The input, with the samples of an antenna and channel after each other.
        from: RingSlots,
        /// The output.
        to: RingSlots,
        /// The weights: complex float32 numbers (beam, antenna), or float16 numbers in the order for tensor cores.
        weights: u64 as "const void*",
        /// Distance between two antennas in samples.
        antenna_step: u64,
        /// Distance between two channels in samples.
        channel_step: u64,
        /// Factor for all outputs.
        scale: f64,
        /// Number of antennas.
        antennas: u32,
        /// Number of channels.
        channels: u32,
        /// Number of times per frame.
        times: u32,
        /// Number of beams.
        beams: u32,
        /// Number of groups of 16 beams.
        groups: u32,
        /// Number of tiles of beams.
        tiles: u32,
        /// Number of times per sum of powers; 1 without sums.
        integrate: u32,
        /// Number of outputs per beam, channel and frame.
        outputs: u32,
        /// Type of the values.
        scalar: u32,
        /// Type of the output's real and imaginary parts.
        kind: u32,
        /// Size of a complex output in bytes.
        sample_bytes: u32,
        /// 1 if the output is the power of the beams.
        detects: u32,
        /// 1 if each channel has weights of its own.
        by_channel: u32,
    }
}

impl From<&Slice> for RingSlots {
    fn from(slice: &Slice) -> Self {
        Self {
            base: slice.base,
            stride: slice.stride as u64,
            slots: small(slice.slots),
            first: small(slice.first),
        }
    }
}

/// Returns the number that represents `scalar` in device code.
pub(super) const fn code_of(scalar: Scalar) -> u32 {
    match scalar {
        Scalar::Int8 => 0,
        Scalar::Uint8 => 1,
        Scalar::Int16 => 2,
        Scalar::Uint16 => 3,
        Scalar::Int32 => 4,
        Scalar::Float32 => 5,
        Scalar::Float64 => 6,
        Scalar::Uint32 => 7,
        Scalar::Int64 => 8,
        Scalar::Float16 => 9,
        Scalar::Bfloat16 => 10,
        Scalar::Int4p | Scalar::Uint4p => 11,
        Scalar::Int10p | Scalar::Uint10p => 12,
        Scalar::Int12p | Scalar::Uint12p => 13,
        Scalar::Int4pmsb | Scalar::Uint4pmsb => 14,
        Scalar::Int10pmsb | Scalar::Uint10pmsb => 15,
        Scalar::Int12pmsb | Scalar::Uint12pmsb => 16,
        Scalar::Int16be => 17,
        Scalar::Uint16be => 18,
        Scalar::Int32be => 19,
        Scalar::Uint32be => 20,
        Scalar::Float32be => 21,
    }
}

/// Converts a count, which must fit into 32 bits, to `u32`.
pub(super) fn small(count: impl TryInto<u32>) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(super) mod tests;
