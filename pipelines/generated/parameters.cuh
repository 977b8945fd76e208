// Parameters of the built-in kernels. A test generates this file from pipelines/src/kernels/parameters.rs, which
// describes the fields. Do not edit it.

struct Complex;

// Consecutive slots of a ring: frame `i` is in slot `(first + i) % slots`.
struct RingSlots {
    u64 base, stride;
    u32 slots, first;
};
static_assert(sizeof(RingSlots) == 24 && OFFSET_OF(RingSlots, base) == 0 && OFFSET_OF(RingSlots, stride) == 8 &&
    OFFSET_OF(RingSlots, slots) == 16 && OFFSET_OF(RingSlots, first) == 20);

// Divides a run of items (spectra or frames) into outputs. The first output consists of the next `left` items,
// which complete it. Each further output consists of `each` items; the last output may remain incomplete.
struct Cut {
    u64 total, left, each;
};
static_assert(sizeof(Cut) == 24 && OFFSET_OF(Cut, total) == 0 && OFFSET_OF(Cut, left) == 8 && OFFSET_OF(Cut, each) == 16);

// Parameters of `convert_straight` and `convert_tiles`.
struct Conversion {
    RingSlots from, to;
    double factor, offset;
    u64 points;
    u32 channels, parts, scalar, tile_points, wide, planar, sign;
};
static_assert(sizeof(Conversion) == 104 && OFFSET_OF(Conversion, from) == 0 && OFFSET_OF(Conversion, to) == 24 &&
    OFFSET_OF(Conversion, factor) == 48 && OFFSET_OF(Conversion, offset) == 56 &&
    OFFSET_OF(Conversion, points) == 64 && OFFSET_OF(Conversion, channels) == 72 &&
    OFFSET_OF(Conversion, parts) == 76 && OFFSET_OF(Conversion, scalar) == 80 &&
    OFFSET_OF(Conversion, tile_points) == 84 && OFFSET_OF(Conversion, wide) == 88 &&
    OFFSET_OF(Conversion, planar) == 92 && OFFSET_OF(Conversion, sign) == 96);
#define CONVERSION_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to_base, \
    u64 given_to_stride, u32 given_to_slots, u32 given_to_first, double given_factor, double given_offset, \
    u64 given_points, u32 given_channels, u32 given_parts, u32 given_scalar, u32 given_tile_points, \
    u32 given_wide, u32 given_planar, u32 given_sign
#define CONVERSION_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, given_factor, given_offset, given_points, given_channels, given_parts, given_scalar, given_tile_points, given_wide, given_planar, given_sign}

// Numbers in groups: number `i` is `bases[i / each] + i % each * step`.
struct Places {
    const u32* bases;
    u32 each, step, count;
};
static_assert(sizeof(Places) == 24 && OFFSET_OF(Places, bases) == 0 && OFFSET_OF(Places, each) == 8 &&
    OFFSET_OF(Places, step) == 12 && OFFSET_OF(Places, count) == 16);

// Parameters of `select_bytes`. The output consists of pieces of `run` bytes: piece `i` is at
// `outer[i / inner.count] + inner[i % inner.count]` of the input.
struct Selection {
    RingSlots from, to;
    Places outer, inner;
    u32 run, bytes, word;
};
static_assert(sizeof(Selection) == 112 && OFFSET_OF(Selection, from) == 0 && OFFSET_OF(Selection, to) == 24 &&
    OFFSET_OF(Selection, outer) == 48 && OFFSET_OF(Selection, inner) == 72 && OFFSET_OF(Selection, run) == 96 &&
    OFFSET_OF(Selection, bytes) == 100 && OFFSET_OF(Selection, word) == 104);
#define SELECTION_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to_base, \
    u64 given_to_stride, u32 given_to_slots, u32 given_to_first, const u32* given_outer_bases, \
    u32 given_outer_each, u32 given_outer_step, u32 given_outer_count, const u32* given_inner_bases, \
    u32 given_inner_each, u32 given_inner_step, u32 given_inner_count, u32 given_run, u32 given_bytes, \
    u32 given_word
#define SELECTION_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, {given_outer_bases, given_outer_each, given_outer_step, given_outer_count}, {given_inner_bases, given_inner_each, given_inner_step, given_inner_count}, given_run, given_bytes, given_word}

// Statistics of the values of one channel, as sums.
struct Tally {
    u64 count, clip;
    double min, max, sum, squares;
};
static_assert(sizeof(Tally) == 48 && OFFSET_OF(Tally, count) == 0 && OFFSET_OF(Tally, clip) == 8 &&
    OFFSET_OF(Tally, min) == 16 && OFFSET_OF(Tally, max) == 24 && OFFSET_OF(Tally, sum) == 32 &&
    OFFSET_OF(Tally, squares) == 40);

// Bins of equal width, with the same edges as in numpy.histogram.
struct Bins {
    double low, high, per_unit;
    const double* edges;
    u32 count, rounds;
};
static_assert(sizeof(Bins) == 40 && OFFSET_OF(Bins, low) == 0 && OFFSET_OF(Bins, high) == 8 &&
    OFFSET_OF(Bins, per_unit) == 16 && OFFSET_OF(Bins, edges) == 24 && OFFSET_OF(Bins, count) == 32 &&
    OFFSET_OF(Bins, rounds) == 36);

// Parameters of `stats_numbers`, `stats_codes` and `stats_finish`.
struct Statistics {
    RingSlots from, to;
    Cut cut;
    Bins bins;
    u64 points, point_step, channel_step, chunk;
    double low, high;
    Tally* partial;
    Tally* kept;
    u64* counts;
    u32 buffers, buffer, pieces, channels, parts, scalar, in_shared, complete;
};
static_assert(sizeof(Statistics) == 216 && OFFSET_OF(Statistics, from) == 0 && OFFSET_OF(Statistics, to) == 24 &&
    OFFSET_OF(Statistics, cut) == 48 && OFFSET_OF(Statistics, bins) == 72 &&
    OFFSET_OF(Statistics, points) == 112 && OFFSET_OF(Statistics, point_step) == 120 &&
    OFFSET_OF(Statistics, channel_step) == 128 && OFFSET_OF(Statistics, chunk) == 136 &&
    OFFSET_OF(Statistics, low) == 144 && OFFSET_OF(Statistics, high) == 152 &&
    OFFSET_OF(Statistics, partial) == 160 && OFFSET_OF(Statistics, kept) == 168 &&
    OFFSET_OF(Statistics, counts) == 176 && OFFSET_OF(Statistics, buffers) == 184 &&
    OFFSET_OF(Statistics, buffer) == 188 && OFFSET_OF(Statistics, pieces) == 192 &&
    OFFSET_OF(Statistics, channels) == 196 && OFFSET_OF(Statistics, parts) == 200 &&
    OFFSET_OF(Statistics, scalar) == 204 && OFFSET_OF(Statistics, in_shared) == 208 &&
    OFFSET_OF(Statistics, complete) == 212);
#define STATISTICS_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to_base, \
    u64 given_to_stride, u32 given_to_slots, u32 given_to_first, u64 given_cut_total, u64 given_cut_left, \
    u64 given_cut_each, double given_bins_low, double given_bins_high, double given_bins_per_unit, \
    const double* given_bins_edges, u32 given_bins_count, u32 given_bins_rounds, u64 given_points, \
    u64 given_point_step, u64 given_channel_step, u64 given_chunk, double given_low, double given_high, \
    Tally* given_partial, Tally* given_kept, u64* given_counts, u32 given_buffers, u32 given_buffer, \
    u32 given_pieces, u32 given_channels, u32 given_parts, u32 given_scalar, u32 given_in_shared, \
    u32 given_complete
#define STATISTICS_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, {given_cut_total, given_cut_left, given_cut_each}, {given_bins_low, given_bins_high, given_bins_per_unit, given_bins_edges, given_bins_count, given_bins_rounds}, given_points, given_point_step, given_channel_step, given_chunk, given_low, given_high, given_partial, given_kept, given_counts, given_buffers, given_buffer, given_pieces, given_channels, given_parts, given_scalar, given_in_shared, given_complete}

// Parameters of `power_spectrum_join`, which appends the rows of frames to the rows of a buffer.
struct Joining {
    RingSlots from;
    u64 to, row, from_pitch, to_pitch;
    u32 rows, word;
};
static_assert(sizeof(Joining) == 64 && OFFSET_OF(Joining, from) == 0 && OFFSET_OF(Joining, to) == 24 &&
    OFFSET_OF(Joining, row) == 32 && OFFSET_OF(Joining, from_pitch) == 40 &&
    OFFSET_OF(Joining, to_pitch) == 48 && OFFSET_OF(Joining, rows) == 56 && OFFSET_OF(Joining, word) == 60);
#define JOINING_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to, \
    u64 given_row, u64 given_from_pitch, u64 given_to_pitch, u32 given_rows, u32 given_word
#define JOINING_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, given_to, given_row, given_from_pitch, given_to_pitch, given_rows, given_word}

// Transforms of one length that a block performs side by side.
struct Transforms {
    const Complex* roots;
    u64 radices;
    u32 size, count, second;
};
static_assert(sizeof(Transforms) == 32 && OFFSET_OF(Transforms, roots) == 0 && OFFSET_OF(Transforms, radices) == 8 &&
    OFFSET_OF(Transforms, size) == 16 && OFFSET_OF(Transforms, count) == 20 &&
    OFFSET_OF(Transforms, second) == 24);

// Parameters of all kernels of `power-spectrum`. Spectrum `s` of a round is spectrum `origin + s`, counted from
// the first frame of `from`.
struct Spectra {
    RingSlots from, to;
    Cut cut;
    Transforms rows, columns;
    const Complex* all_roots;
    const float* window;
    Complex* means;
    Complex* work;
    float* partial;
    const double* carried;
    double* carry;
    u64 point_step, channel_step, hop, spectra, origin, chunk;
    double factor;
    u32 pieces, channels, scalar, complex, block, bins, width, complete, doubled, db, direct, history, spaces,
    space, pending;
};
static_assert(sizeof(Spectra) == 312 && OFFSET_OF(Spectra, from) == 0 && OFFSET_OF(Spectra, to) == 24 &&
    OFFSET_OF(Spectra, cut) == 48 && OFFSET_OF(Spectra, rows) == 72 && OFFSET_OF(Spectra, columns) == 104 &&
    OFFSET_OF(Spectra, all_roots) == 136 && OFFSET_OF(Spectra, window) == 144 &&
    OFFSET_OF(Spectra, means) == 152 && OFFSET_OF(Spectra, work) == 160 && OFFSET_OF(Spectra, partial) == 168 &&
    OFFSET_OF(Spectra, carried) == 176 && OFFSET_OF(Spectra, carry) == 184 &&
    OFFSET_OF(Spectra, point_step) == 192 && OFFSET_OF(Spectra, channel_step) == 200 &&
    OFFSET_OF(Spectra, hop) == 208 && OFFSET_OF(Spectra, spectra) == 216 && OFFSET_OF(Spectra, origin) == 224 &&
    OFFSET_OF(Spectra, chunk) == 232 && OFFSET_OF(Spectra, factor) == 240 && OFFSET_OF(Spectra, pieces) == 248 &&
    OFFSET_OF(Spectra, channels) == 252 && OFFSET_OF(Spectra, scalar) == 256 &&
    OFFSET_OF(Spectra, complex) == 260 && OFFSET_OF(Spectra, block) == 264 && OFFSET_OF(Spectra, bins) == 268 &&
    OFFSET_OF(Spectra, width) == 272 && OFFSET_OF(Spectra, complete) == 276 &&
    OFFSET_OF(Spectra, doubled) == 280 && OFFSET_OF(Spectra, db) == 284 && OFFSET_OF(Spectra, direct) == 288 &&
    OFFSET_OF(Spectra, history) == 292 && OFFSET_OF(Spectra, spaces) == 296 &&
    OFFSET_OF(Spectra, space) == 300 && OFFSET_OF(Spectra, pending) == 304);
#define SPECTRA_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to_base, \
    u64 given_to_stride, u32 given_to_slots, u32 given_to_first, u64 given_cut_total, u64 given_cut_left, \
    u64 given_cut_each, const Complex* given_rows_roots, u64 given_rows_radices, u32 given_rows_size, \
    u32 given_rows_count, u32 given_rows_second, const Complex* given_columns_roots, u64 given_columns_radices, \
    u32 given_columns_size, u32 given_columns_count, u32 given_columns_second, const Complex* given_all_roots, \
    const float* given_window, Complex* given_means, Complex* given_work, float* given_partial, \
    const double* given_carried, double* given_carry, u64 given_point_step, u64 given_channel_step, \
    u64 given_hop, u64 given_spectra, u64 given_origin, u64 given_chunk, double given_factor, u32 given_pieces, \
    u32 given_channels, u32 given_scalar, u32 given_complex, u32 given_block, u32 given_bins, u32 given_width, \
    u32 given_complete, u32 given_doubled, u32 given_db, u32 given_direct, u32 given_history, u32 given_spaces, \
    u32 given_space, u32 given_pending
#define SPECTRA_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, {given_cut_total, given_cut_left, given_cut_each}, {given_rows_roots, given_rows_radices, given_rows_size, given_rows_count, given_rows_second}, {given_columns_roots, given_columns_radices, given_columns_size, given_columns_count, given_columns_second}, given_all_roots, given_window, given_means, given_work, given_partial, given_carried, given_carry, given_point_step, given_channel_step, given_hop, given_spectra, given_origin, given_chunk, given_factor, given_pieces, given_channels, given_scalar, given_complex, given_block, given_bins, given_width, given_complete, given_doubled, given_db, given_direct, given_history, given_spaces, given_space, given_pending}

// Parameters of the kernels of `channelize`. A point is a complex sample or two successive real samples.
struct Polyphase {
    RingSlots from, to;
    const float* coefficients;
    const Complex* roots;
    const u8* history;
    u8* kept;
    u32 points, hop, before, taps, spectra, inputs, frames, sets, count, phase, scalar, complex, kind, symmetric;
};
static_assert(sizeof(Polyphase) == 136 && OFFSET_OF(Polyphase, from) == 0 && OFFSET_OF(Polyphase, to) == 24 &&
    OFFSET_OF(Polyphase, coefficients) == 48 && OFFSET_OF(Polyphase, roots) == 56 &&
    OFFSET_OF(Polyphase, history) == 64 && OFFSET_OF(Polyphase, kept) == 72 &&
    OFFSET_OF(Polyphase, points) == 80 && OFFSET_OF(Polyphase, hop) == 84 &&
    OFFSET_OF(Polyphase, before) == 88 && OFFSET_OF(Polyphase, taps) == 92 &&
    OFFSET_OF(Polyphase, spectra) == 96 && OFFSET_OF(Polyphase, inputs) == 100 &&
    OFFSET_OF(Polyphase, frames) == 104 && OFFSET_OF(Polyphase, sets) == 108 &&
    OFFSET_OF(Polyphase, count) == 112 && OFFSET_OF(Polyphase, phase) == 116 &&
    OFFSET_OF(Polyphase, scalar) == 120 && OFFSET_OF(Polyphase, complex) == 124 &&
    OFFSET_OF(Polyphase, kind) == 128 && OFFSET_OF(Polyphase, symmetric) == 132);
#define POLYPHASE_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to_base, \
    u64 given_to_stride, u32 given_to_slots, u32 given_to_first, const float* given_coefficients, \
    const Complex* given_roots, const u8* given_history, u8* given_kept, u32 given_points, u32 given_hop, \
    u32 given_before, u32 given_taps, u32 given_spectra, u32 given_inputs, u32 given_frames, u32 given_sets, \
    u32 given_count, u32 given_phase, u32 given_scalar, u32 given_complex, u32 given_kind, u32 given_symmetric
#define POLYPHASE_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, given_coefficients, given_roots, given_history, given_kept, given_points, given_hop, given_before, given_taps, given_spectra, given_inputs, given_frames, given_sets, given_count, given_phase, given_scalar, given_complex, given_kind, given_symmetric}

// Parameters of the kernels of `correlate`. Item `q` of a round is item `origin + q`, counted from the first frame of
// `from`.
struct Correlation {
    RingSlots from, to;
    Cut cut;
    const double* carried;
    double* carry;
    u64 antenna_step, channel_step, origin, items;
    double scale;
    u32 length, antennas, tiles, scalar, kind, complete;
};
static_assert(sizeof(Correlation) == 152 && OFFSET_OF(Correlation, from) == 0 && OFFSET_OF(Correlation, to) == 24 &&
    OFFSET_OF(Correlation, cut) == 48 && OFFSET_OF(Correlation, carried) == 72 &&
    OFFSET_OF(Correlation, carry) == 80 && OFFSET_OF(Correlation, antenna_step) == 88 &&
    OFFSET_OF(Correlation, channel_step) == 96 && OFFSET_OF(Correlation, origin) == 104 &&
    OFFSET_OF(Correlation, items) == 112 && OFFSET_OF(Correlation, scale) == 120 &&
    OFFSET_OF(Correlation, length) == 128 && OFFSET_OF(Correlation, antennas) == 132 &&
    OFFSET_OF(Correlation, tiles) == 136 && OFFSET_OF(Correlation, scalar) == 140 &&
    OFFSET_OF(Correlation, kind) == 144 && OFFSET_OF(Correlation, complete) == 148);
#define CORRELATION_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to_base, \
    u64 given_to_stride, u32 given_to_slots, u32 given_to_first, u64 given_cut_total, u64 given_cut_left, \
    u64 given_cut_each, const double* given_carried, double* given_carry, u64 given_antenna_step, \
    u64 given_channel_step, u64 given_origin, u64 given_items, double given_scale, u32 given_length, \
    u32 given_antennas, u32 given_tiles, u32 given_scalar, u32 given_kind, u32 given_complete
#define CORRELATION_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, {given_cut_total, given_cut_left, given_cut_each}, given_carried, given_carry, given_antenna_step, given_channel_step, given_origin, given_items, given_scale, given_length, given_antennas, given_tiles, given_scalar, given_kind, given_complete}

// Parameters of `reorder_samples`. The axes are time, the axis whose elements are neighbours in the input, and a
// third axis. Steps are in samples.
struct Reordering {
    RingSlots from, to;
    u64 slow_step, time_step, to_fast_step, to_slow_step;
    u32 fast, times, bytes;
};
static_assert(sizeof(Reordering) == 96 && OFFSET_OF(Reordering, from) == 0 && OFFSET_OF(Reordering, to) == 24 &&
    OFFSET_OF(Reordering, slow_step) == 48 && OFFSET_OF(Reordering, time_step) == 56 &&
    OFFSET_OF(Reordering, to_fast_step) == 64 && OFFSET_OF(Reordering, to_slow_step) == 72 &&
    OFFSET_OF(Reordering, fast) == 80 && OFFSET_OF(Reordering, times) == 84 &&
    OFFSET_OF(Reordering, bytes) == 88);
#define REORDERING_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to_base, \
    u64 given_to_stride, u32 given_to_slots, u32 given_to_first, u64 given_slow_step, u64 given_time_step, \
    u64 given_to_fast_step, u64 given_to_slow_step, u32 given_fast, u32 given_times, u32 given_bytes
#define REORDERING_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, given_slow_step, given_time_step, given_to_fast_step, given_to_slow_step, given_fast, given_times, given_bytes}

// Parameters of the kernels of `beamform`.
struct Beams {
    RingSlots from, to;
    const void* weights;
    u64 antenna_step, channel_step;
    double scale;
    u32 antennas, channels, times, beams, groups, tiles, integrate, outputs, scalar, kind, sample_bytes, detects,
    by_channel;
};
static_assert(sizeof(Beams) == 136 && OFFSET_OF(Beams, from) == 0 && OFFSET_OF(Beams, to) == 24 &&
    OFFSET_OF(Beams, weights) == 48 && OFFSET_OF(Beams, antenna_step) == 56 &&
    OFFSET_OF(Beams, channel_step) == 64 && OFFSET_OF(Beams, scale) == 72 && OFFSET_OF(Beams, antennas) == 80 &&
    OFFSET_OF(Beams, channels) == 84 && OFFSET_OF(Beams, times) == 88 && OFFSET_OF(Beams, beams) == 92 &&
    OFFSET_OF(Beams, groups) == 96 && OFFSET_OF(Beams, tiles) == 100 && OFFSET_OF(Beams, integrate) == 104 &&
    OFFSET_OF(Beams, outputs) == 108 && OFFSET_OF(Beams, scalar) == 112 && OFFSET_OF(Beams, kind) == 116 &&
    OFFSET_OF(Beams, sample_bytes) == 120 && OFFSET_OF(Beams, detects) == 124 &&
    OFFSET_OF(Beams, by_channel) == 128);
#define BEAMS_PARAMETERS \
    u64 given_from_base, u64 given_from_stride, u32 given_from_slots, u32 given_from_first, u64 given_to_base, \
    u64 given_to_stride, u32 given_to_slots, u32 given_to_first, const void* given_weights, \
    u64 given_antenna_step, u64 given_channel_step, double given_scale, u32 given_antennas, u32 given_channels, \
    u32 given_times, u32 given_beams, u32 given_groups, u32 given_tiles, u32 given_integrate, \
    u32 given_outputs, u32 given_scalar, u32 given_kind, u32 given_sample_bytes, u32 given_detects, \
    u32 given_by_channel
#define BEAMS_GIVEN {{given_from_base, given_from_stride, given_from_slots, given_from_first}, {given_to_base, given_to_stride, given_to_slots, given_to_first}, given_weights, given_antenna_step, given_channel_step, given_scale, given_antennas, given_channels, given_times, given_beams, given_groups, given_tiles, given_integrate, given_outputs, given_scalar, given_kind, given_sample_bytes, given_detects, given_by_channel}
