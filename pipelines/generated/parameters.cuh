// Parameters of the built-in kernels. A test generates this file from pipelines/src/kernels/parameters.rs.
// Do not edit it.

struct Complex;

// Consecutive slots of a ring: frame `i` is in slot `(first + i) % slots`.
struct RingSlots {
    // Address of the first slot of the ring.
    u64 base;
    // Distance between slots in bytes.
    u64 stride;
    // Number of slots of the ring.
    u32 slots;
    // Slot of frame 0.
    u32 first;
};
static_assert(sizeof(RingSlots) == 24);
static_assert(OFFSET_OF(RingSlots, base) == 0);
static_assert(OFFSET_OF(RingSlots, stride) == 8);
static_assert(OFFSET_OF(RingSlots, slots) == 16);
static_assert(OFFSET_OF(RingSlots, first) == 20);

// Divides a run of items (spectra or frames) into outputs. The first output consists of the next `left` items,
// which complete it. Each further output consists of `each` items; the last output may remain incomplete.
struct Cut {
    // Number of items of the run.
    u64 total;
    // Number of items that complete the first output.
    u64 left;
    // Number of items per further output.
    u64 each;
};
static_assert(sizeof(Cut) == 24);
static_assert(OFFSET_OF(Cut, total) == 0);
static_assert(OFFSET_OF(Cut, left) == 8);
static_assert(OFFSET_OF(Cut, each) == 16);

// Parameters of `convert_straight` and `convert_tiles`.
struct Conversion {
    // The input.
    RingSlots from;
    // The output.
    RingSlots to;
    // Factor for every value.
    double factor;
    // Offset that is added to every product.
    double offset;
    // Number of points per channel and frame.
    u64 points;
    // Number of channels.
    u32 channels;
    // Number of values per sample: 2 for complex samples, otherwise 1.
    u32 parts;
    // Type of the values of the input.
    u32 scalar;
    // Number of points of a tile.
    u32 tile_points;
    // Number of channels of a tile.
    u32 wide;
    // 1 if the output is planar, 0 if it is interleaved.
    u32 planar;
};
static_assert(sizeof(Conversion) == 96);
static_assert(OFFSET_OF(Conversion, from) == 0);
static_assert(OFFSET_OF(Conversion, to) == 24);
static_assert(OFFSET_OF(Conversion, factor) == 48);
static_assert(OFFSET_OF(Conversion, offset) == 56);
static_assert(OFFSET_OF(Conversion, points) == 64);
static_assert(OFFSET_OF(Conversion, channels) == 72);
static_assert(OFFSET_OF(Conversion, parts) == 76);
static_assert(OFFSET_OF(Conversion, scalar) == 80);
static_assert(OFFSET_OF(Conversion, tile_points) == 84);
static_assert(OFFSET_OF(Conversion, wide) == 88);
static_assert(OFFSET_OF(Conversion, planar) == 92);
#define CONVERSION_PARAMETERS \
    u64 given_from_base, \
    u64 given_from_stride, \
    u32 given_from_slots, \
    u32 given_from_first, \
    u64 given_to_base, \
    u64 given_to_stride, \
    u32 given_to_slots, \
    u32 given_to_first, \
    double given_factor, \
    double given_offset, \
    u64 given_points, \
    u32 given_channels, \
    u32 given_parts, \
    u32 given_scalar, \
    u32 given_tile_points, \
    u32 given_wide, \
    u32 given_planar
#define CONVERSION_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, given_factor, given_offset, given_points, given_channels, given_parts, given_scalar, given_tile_points, given_wide, given_planar}

// Statistics of the values of one channel, as sums.
struct Tally {
    // Number of values without NaNs.
    u64 count;
    // Number of clipped values.
    u64 clip;
    // Smallest value.
    double min;
    // Largest value.
    double max;
    // Sum of all values.
    double sum;
    // Sum of the squares of all values.
    double squares;
};
static_assert(sizeof(Tally) == 48);
static_assert(OFFSET_OF(Tally, count) == 0);
static_assert(OFFSET_OF(Tally, clip) == 8);
static_assert(OFFSET_OF(Tally, min) == 16);
static_assert(OFFSET_OF(Tally, max) == 24);
static_assert(OFFSET_OF(Tally, sum) == 32);
static_assert(OFFSET_OF(Tally, squares) == 40);

// Bins of equal width, with the same edges as in numpy.histogram.
struct Bins {
    // Lower edge of the first bin.
    double low;
    // Upper edge of the last bin.
    double high;
    // Number of bins per unit.
    double per_unit;
    // Lower edge of each bin, and the upper edge of the last bin.
    const double* edges;
    // Number of bins; 0 without a histogram.
    u32 count;
    // 1 if rounding can assign a value close to an edge to the wrong bin, so that the bin must be checked.
    u32 rounds;
};
static_assert(sizeof(Bins) == 40);
static_assert(OFFSET_OF(Bins, low) == 0);
static_assert(OFFSET_OF(Bins, high) == 8);
static_assert(OFFSET_OF(Bins, per_unit) == 16);
static_assert(OFFSET_OF(Bins, edges) == 24);
static_assert(OFFSET_OF(Bins, count) == 32);
static_assert(OFFSET_OF(Bins, rounds) == 36);

// Parameters of `stats_numbers`, `stats_codes` and `stats_finish`.
struct Statistics {
    // The input.
    RingSlots from;
    // The output.
    RingSlots to;
    // Division of the frames into outputs.
    Cut cut;
    // The histogram.
    Bins bins;
    // Number of points per channel and frame.
    u64 points;
    // Distance between two points in samples.
    u64 point_step;
    // Distance between two channels in samples.
    u64 channel_step;
    // Number of values per part of a channel of a frame.
    u64 chunk;
    // Values at or below `low`, or at or above `high`, are clipped.
    double low;
    // See `low`.
    double high;
    // Tallies of all parts of the round.
    Tally* partial;
    // Tallies of the outputs in progress, one set per buffer.
    Tally* kept;
    // Histograms of the outputs in progress, one set per buffer.
    u64* counts;
    // Number of buffers.
    u32 buffers;
    // Buffer of the first output.
    u32 buffer;
    // Number of parts per channel of a frame.
    u32 pieces;
    // Number of channels.
    u32 channels;
    // Number of values per sample: 2 for complex samples, otherwise 1.
    u32 parts;
    // Type of the values.
    u32 scalar;
    // 1 if histograms are first counted in shared memory.
    u32 in_shared;
    // Number of outputs that the round completes.
    u32 complete;
};
static_assert(sizeof(Statistics) == 216);
static_assert(OFFSET_OF(Statistics, from) == 0);
static_assert(OFFSET_OF(Statistics, to) == 24);
static_assert(OFFSET_OF(Statistics, cut) == 48);
static_assert(OFFSET_OF(Statistics, bins) == 72);
static_assert(OFFSET_OF(Statistics, points) == 112);
static_assert(OFFSET_OF(Statistics, point_step) == 120);
static_assert(OFFSET_OF(Statistics, channel_step) == 128);
static_assert(OFFSET_OF(Statistics, chunk) == 136);
static_assert(OFFSET_OF(Statistics, low) == 144);
static_assert(OFFSET_OF(Statistics, high) == 152);
static_assert(OFFSET_OF(Statistics, partial) == 160);
static_assert(OFFSET_OF(Statistics, kept) == 168);
static_assert(OFFSET_OF(Statistics, counts) == 176);
static_assert(OFFSET_OF(Statistics, buffers) == 184);
static_assert(OFFSET_OF(Statistics, buffer) == 188);
static_assert(OFFSET_OF(Statistics, pieces) == 192);
static_assert(OFFSET_OF(Statistics, channels) == 196);
static_assert(OFFSET_OF(Statistics, parts) == 200);
static_assert(OFFSET_OF(Statistics, scalar) == 204);
static_assert(OFFSET_OF(Statistics, in_shared) == 208);
static_assert(OFFSET_OF(Statistics, complete) == 212);
#define STATISTICS_PARAMETERS \
    u64 given_from_base, \
    u64 given_from_stride, \
    u32 given_from_slots, \
    u32 given_from_first, \
    u64 given_to_base, \
    u64 given_to_stride, \
    u32 given_to_slots, \
    u32 given_to_first, \
    u64 given_cut_total, \
    u64 given_cut_left, \
    u64 given_cut_each, \
    double given_bins_low, \
    double given_bins_high, \
    double given_bins_per_unit, \
    const double* given_bins_edges, \
    u32 given_bins_count, \
    u32 given_bins_rounds, \
    u64 given_points, \
    u64 given_point_step, \
    u64 given_channel_step, \
    u64 given_chunk, \
    double given_low, \
    double given_high, \
    Tally* given_partial, \
    Tally* given_kept, \
    u64* given_counts, \
    u32 given_buffers, \
    u32 given_buffer, \
    u32 given_pieces, \
    u32 given_channels, \
    u32 given_parts, \
    u32 given_scalar, \
    u32 given_in_shared, \
    u32 given_complete
#define STATISTICS_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, {given_cut_total, given_cut_left, given_cut_each}, {given_bins_low, given_bins_high, given_bins_per_unit, given_bins_edges, given_bins_count, given_bins_rounds}, given_points, given_point_step, given_channel_step, given_chunk, given_low, given_high, given_partial, given_kept, given_counts, given_buffers, given_buffer, given_pieces, given_channels, given_parts, given_scalar, given_in_shared, given_complete}

// Transforms of one length that a block performs side by side.
struct Transforms {
    // The roots of unity `exp(-2 pi i k / size)`.
    const Complex* roots;
    // The radices of the passes with four bits each; the first pass is in the lowest bits.
    u64 radices;
    // Number of points.
    u32 size;
    // Number of transforms per block.
    u32 count;
};
static_assert(sizeof(Transforms) == 24);
static_assert(OFFSET_OF(Transforms, roots) == 0);
static_assert(OFFSET_OF(Transforms, radices) == 8);
static_assert(OFFSET_OF(Transforms, size) == 16);
static_assert(OFFSET_OF(Transforms, count) == 20);

// Parameters of all kernels of `power-spectrum`. Spectrum `s` of a round is spectrum `origin + s`, counted from
// the first frame of `from`.
struct Spectra {
    // The input.
    RingSlots from;
    // The output.
    RingSlots to;
    // Division of the spectra into outputs.
    Cut cut;
    // The transforms of whole blocks or, for long transforms, of the rows.
    Transforms rows;
    // The transforms of the columns of long transforms.
    Transforms columns;
    // The roots of unity of long transforms.
    const Complex* all_roots;
    // The window.
    const float* window;
    // Memory for the means to subtract; null if no mean is subtracted.
    Complex* means;
    // Memory for the transformed columns.
    Complex* work;
    // Memory for the sums of the pieces.
    double* partial;
    // Sums of earlier rounds for the first output; null without such sums.
    const double* carried;
    // Memory for the sums of an output that remains incomplete.
    double* carry;
    // Distance between two points in samples.
    u64 point_step;
    // Distance between two channels in samples.
    u64 channel_step;
    // Distance between the starts of two blocks in points.
    u64 hop;
    // Number of spectra per channel and frame.
    u64 spectra;
    // Spectrum of the first frame with which the round begins.
    u64 origin;
    // Number of spectra per piece.
    u64 chunk;
    // Factor by which a finished sum is multiplied.
    double factor;
    // Maximum number of pieces per output.
    u32 pieces;
    // Number of channels.
    u32 channels;
    // Type of the values.
    u32 scalar;
    // 1 for complex samples.
    u32 complex;
    // Number of points of a whole transform.
    u32 size;
    // Number of points per channel in an output.
    u32 bins;
    // Number of values per set of partial sums.
    u32 width;
    // Number of outputs that the round completes.
    u32 complete;
    // Bins 1 to `doubled` - 1 are doubled.
    u32 doubled;
    // 1 if the output is in decibels.
    u32 db;
};
static_assert(sizeof(Spectra) == 272);
static_assert(OFFSET_OF(Spectra, from) == 0);
static_assert(OFFSET_OF(Spectra, to) == 24);
static_assert(OFFSET_OF(Spectra, cut) == 48);
static_assert(OFFSET_OF(Spectra, rows) == 72);
static_assert(OFFSET_OF(Spectra, columns) == 96);
static_assert(OFFSET_OF(Spectra, all_roots) == 120);
static_assert(OFFSET_OF(Spectra, window) == 128);
static_assert(OFFSET_OF(Spectra, means) == 136);
static_assert(OFFSET_OF(Spectra, work) == 144);
static_assert(OFFSET_OF(Spectra, partial) == 152);
static_assert(OFFSET_OF(Spectra, carried) == 160);
static_assert(OFFSET_OF(Spectra, carry) == 168);
static_assert(OFFSET_OF(Spectra, point_step) == 176);
static_assert(OFFSET_OF(Spectra, channel_step) == 184);
static_assert(OFFSET_OF(Spectra, hop) == 192);
static_assert(OFFSET_OF(Spectra, spectra) == 200);
static_assert(OFFSET_OF(Spectra, origin) == 208);
static_assert(OFFSET_OF(Spectra, chunk) == 216);
static_assert(OFFSET_OF(Spectra, factor) == 224);
static_assert(OFFSET_OF(Spectra, pieces) == 232);
static_assert(OFFSET_OF(Spectra, channels) == 236);
static_assert(OFFSET_OF(Spectra, scalar) == 240);
static_assert(OFFSET_OF(Spectra, complex) == 244);
static_assert(OFFSET_OF(Spectra, size) == 248);
static_assert(OFFSET_OF(Spectra, bins) == 252);
static_assert(OFFSET_OF(Spectra, width) == 256);
static_assert(OFFSET_OF(Spectra, complete) == 260);
static_assert(OFFSET_OF(Spectra, doubled) == 264);
static_assert(OFFSET_OF(Spectra, db) == 268);
#define SPECTRA_PARAMETERS \
    u64 given_from_base, \
    u64 given_from_stride, \
    u32 given_from_slots, \
    u32 given_from_first, \
    u64 given_to_base, \
    u64 given_to_stride, \
    u32 given_to_slots, \
    u32 given_to_first, \
    u64 given_cut_total, \
    u64 given_cut_left, \
    u64 given_cut_each, \
    const Complex* given_rows_roots, \
    u64 given_rows_radices, \
    u32 given_rows_size, \
    u32 given_rows_count, \
    const Complex* given_columns_roots, \
    u64 given_columns_radices, \
    u32 given_columns_size, \
    u32 given_columns_count, \
    const Complex* given_all_roots, \
    const float* given_window, \
    Complex* given_means, \
    Complex* given_work, \
    double* given_partial, \
    const double* given_carried, \
    double* given_carry, \
    u64 given_point_step, \
    u64 given_channel_step, \
    u64 given_hop, \
    u64 given_spectra, \
    u64 given_origin, \
    u64 given_chunk, \
    double given_factor, \
    u32 given_pieces, \
    u32 given_channels, \
    u32 given_scalar, \
    u32 given_complex, \
    u32 given_size, \
    u32 given_bins, \
    u32 given_width, \
    u32 given_complete, \
    u32 given_doubled, \
    u32 given_db
#define SPECTRA_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, {given_cut_total, given_cut_left, given_cut_each}, {given_rows_roots, given_rows_radices, given_rows_size, given_rows_count}, {given_columns_roots, given_columns_radices, given_columns_size, given_columns_count}, given_all_roots, given_window, given_means, given_work, given_partial, given_carried, given_carry, given_point_step, given_channel_step, given_hop, given_spectra, given_origin, given_chunk, given_factor, given_pieces, given_channels, given_scalar, given_complex, given_size, given_bins, given_width, given_complete, given_doubled, given_db}
