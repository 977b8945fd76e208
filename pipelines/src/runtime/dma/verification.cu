// Counts sentinels in a slot that a device should have written. This is the GPU code of runtime/dma/verification.rs.

typedef unsigned long long Word;

// Returns the sentinel of word `i` of the region, computed as in daq_core::dma::Sentinel.
static __device__ Word sentinel(Word seed, Word i) {
    Word z = seed + i * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Checks `bytes` bytes (a multiple of 8) from `slot` on. The device should have overwritten the first `written` bytes
// and no others. `first` is the index of the first word within the region. Adds the number of words that were not
// overwritten to found[0], and the number of words that were overwritten by mistake to found[1].
extern "C" __global__ void __launch_bounds__(256) daq_verify(
    const volatile Word* slot, Word bytes, Word written, Word seed, Word first, Word* found) {
    const Word threads = (Word)gridDim.x * blockDim.x;
    Word unwritten = 0, touched = 0;
    for (Word i = (Word)blockIdx.x * blockDim.x + threadIdx.x; i < bytes / 8; i += threads) {
        const Word differs = slot[i] ^ sentinel(seed, first + i);
        const Word inside = written <= 8 * i ? 0 : written - 8 * i;
        // Single bytes of the data may equal the sentinel by chance, but a whole word does not.
        if (inside >= 8) {
            unwritten += differs == 0;
        } else {
            const Word beyond = inside == 0 ? differs : differs >> (8 * inside);
            touched += beyond != 0;
        }
    }
    if (unwritten != 0) atomicAdd(found, unwritten);
    if (touched != 0) atomicAdd(found + 1, touched);
}
