//! Measurement of the copies between host memory and GPUs, and between GPUs. Takes well under a second per GPU.

use super::baseline::BaselineCopy;
use super::profile::{Profile, Rates};
use crate::gpu::bar_mapping::{BarMapping, BarMappingError};
use crate::gpu::driver::{CudaError, Device, StreamEvent};
use crate::gpu::{Backend, Writer};
use crate::region::RegionError;
use crate::staging::Direction;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size of the largest copy in bytes.
const LARGEST: usize = 64 << 20;
/// The copy sizes in bytes from which the chunk size is selected.
const SIZES: [usize; 7] = doubled(256 << 10);
/// Number of copies in flight while rates by size are measured.
const DEPTH: usize = 4;
/// Number of bytes copied per size.
const VOLUME: usize = 128 << 20;
/// Number of repetitions. The fastest one is used, because disturbances only make a copy slower.
const REPEATS: usize = 3;
/// Maximum duration of one measurement. On a slow bus, the measurement then ends before it has copied the whole volume.
const LIMIT: Duration = Duration::from_millis(20);
/// Minimum number of copies per measurement.
const MIN_COPIES: usize = 4;
/// Number of small copies for measuring the latency.
const SMALL: usize = 32;
/// The sizes in bytes at which CPU stores and the copy engine are compared.
const STORES: [usize; 9] = doubled(4 << 10);
/// Number of stores, and number of copies, that are timed per size.
const PAIRS: usize = 9;
/// The CPU-store threshold is a multiple of this number of bytes.
const GRAIN: usize = 4 << 10;

/// Returns `first`, and further numbers that are each twice the one before.
const fn doubled<const N: usize>(first: usize) -> [usize; N] {
    let mut numbers = [first; N];
    let mut i = 1;
    while i < N {
        numbers[i] = 2 * numbers[i - 1];
        i += 1;
    }
    numbers
}

/// The error of a failed measurement.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// Host memory could not be allocated or pinned.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A call of the CUDA driver failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Copies between two GPUs deliver wrong bytes.
    #[error(
        "copies from cuda:{from} to cuda:{to} deliver wrong bytes, so the machine's IOMMU or PCIe switches prevent direct access; set peer_access = false in [staging], so that frames are copied through host memory"
    )]
    WrongBytes {
        /// CUDA ordinal of the source.
        from: u32,
        /// CUDA ordinal of the target.
        to: u32,
    },
    /// The CPU could no longer store to the GPU's memory.
    #[error(transparent)]
    BarMapping(#[from] BarMappingError),
}

/// Whether `copies` of `bytes` bytes within `took` are enough for a result. `volume` bytes always are.
fn is_enough(copies: usize, bytes: usize, volume: usize, took: Duration) -> bool {
    copies >= MIN_COPIES && (copies * bytes >= volume || took >= LIMIT)
}

/// Number of bytes copied per size between two GPUs, whose links are faster.
const PEER_VOLUME: usize = 1 << 30;
/// The copy sizes in bytes from which the chunk size of copies between GPUs is selected.
const PEER_SIZES: [usize; 9] = doubled(256 << 10);

/// Measures the data rate of copies of `bytes` bytes, with at most `depth` copies in flight, in bytes per second.
fn rate(
    baseline: &BaselineCopy,
    bytes: usize,
    volume: usize,
    depth: usize,
) -> Result<f64, CudaError> {
    let mut best = 0.0_f64;
    let mut events: VecDeque<Arc<StreamEvent>> = VecDeque::with_capacity(depth);
    let begun = Instant::now();
    for _ in 0..REPEATS {
        let (start, mut copies) = (Instant::now(), 0);
        while !is_enough(copies, bytes, volume, start.elapsed()) {
            if events.len() == depth
                && let Some(oldest) = events.pop_front()
            {
                BaselineCopy::wait(&oldest);
            }
            baseline.begin(baseline.walk(bytes), bytes)?;
            events.push_back(baseline.record_event()?);
            copies += 1;
        }
        baseline.finish()?;
        events.clear();
        best = best.max((bytes * copies) as f64 / start.elapsed().as_secs_f64());
        if begun.elapsed() >= LIMIT {
            break;
        }
    }
    Ok(best)
}

/// Measures the time of a small copy from the call to its end.
fn latency(baseline: &BaselineCopy) -> Result<Duration, CudaError> {
    let mut times = [Duration::ZERO; SMALL];
    for time in &mut times {
        let start = Instant::now();
        baseline.begin(0, 4096)?;
        BaselineCopy::wait(&*baseline.record_event()?);
        *time = start.elapsed();
    }
    times.sort_unstable();
    Ok(times[SMALL / 2])
}

/// Measures copies of `sizes`, with about `volume` bytes per size.
fn rates(baseline: &BaselineCopy, sizes: &[usize], volume: usize) -> Result<Rates, CudaError> {
    // The first copy includes one-time setup.
    baseline.begin(0, LARGEST)?;
    baseline.finish()?;
    let mut by_size = Vec::with_capacity(sizes.len());
    for &bytes in sizes {
        by_size.push((bytes, rate(baseline, bytes, volume, DEPTH)?));
    }
    Ok(Rates {
        bytes_per_second: rate(baseline, LARGEST, volume, 2)?,
        latency_ns: u64::try_from(latency(baseline)?.as_nanos()).unwrap_or(u64::MAX),
        by_size,
    })
}

/// The durations of a store and a copy of the same size.
#[derive(Clone, Copy, Debug)]
struct Pair {
    bytes: usize,
    store: Duration,
    copy: Duration,
}

/// Returns the size at which copies become faster than stores, interpolated between two sizes; 0 if copies are always
/// faster, the largest size if they never are.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the result is a positive size between two others"
)]
fn crossing(pairs: &[Pair]) -> usize {
    let gain = |pair: &Pair| pair.copy.as_secs_f64() - pair.store.as_secs_f64();
    let Some(last) = pairs.iter().rposition(|pair| gain(pair) > 0.0) else {
        return 0;
    };
    let Some(next) = pairs.get(last + 1) else {
        return pairs[last].bytes;
    };
    let (gained, lost) = (gain(&pairs[last]), -gain(next));
    let between = (next.bytes - pairs[last].bytes) as f64;
    let bytes = pairs[last].bytes + (between * gained / (gained + lost)) as usize;
    bytes / GRAIN * GRAIN
}

/// Measures the CPU-store threshold; `None` if the CPU cannot store to the GPU's memory.
fn cpu_store_threshold(
    baseline: &BaselineCopy,
    allowed: &[Backend],
) -> Result<Option<usize>, MeasureError> {
    let largest = STORES[STORES.len() - 1];
    let Ok(mapped) = BarMapping::new(baseline.device(), largest, Writer::Cpu, allowed) else {
        return Ok(None);
    };
    let from = vec![0x5a; largest];
    let mut pairs = Vec::with_capacity(STORES.len());
    for bytes in STORES {
        let (mut stores, mut copies) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        while stores.len() < PAIRS && (stores.is_empty() || begun.elapsed() < LIMIT / 4) {
            let start = Instant::now();
            mapped.copy_to(0, &from[..bytes])?;
            let stored = Instant::now();
            baseline.begin(0, bytes)?;
            baseline.finish()?;
            stores.push(stored - start);
            copies.push(stored.elapsed());
        }
        stores.sort_unstable();
        copies.sort_unstable();
        let (store, copy) = (stores[stores.len() / 2], copies[copies.len() / 2]);
        pairs.push(Pair { bytes, store, copy });
    }
    Ok(Some(crossing(&pairs)))
}

/// Measures copies in both directions of a GPU. If the CPU can store to the GPU's memory, also measures up to which
/// size stores are faster than copies. Temporarily uses 130 MiB of memory, half of it on the GPU.
pub fn measure(device: &'static Device) -> Result<Profile, MeasureError> {
    measure_with(device, &Backend::ALL)
}

/// Measures as [`measure`] does, but uses only the `allowed` backends for BAR mappings.
pub fn measure_with(device: &'static Device, allowed: &[Backend]) -> Result<Profile, MeasureError> {
    let mut baseline = BaselineCopy::new(device, Direction::In, LARGEST, false)?;
    let inward = rates(&baseline, &SIZES, VOLUME)?;
    let cpu_store_threshold = cpu_store_threshold(&baseline, allowed)?;
    baseline.turn(Direction::Out);
    let outward = rates(&baseline, &SIZES, VOLUME)?;
    Ok(Profile {
        inward,
        outward,
        cpu_store_threshold,
        cards: BTreeMap::new(),
        peers: BTreeMap::new(),
    })
}

/// Copies a pattern from GPU `from` to GPU `to`, and compares it. On some machines, an IOMMU or a PCIe switch drops or
/// redirects accesses between devices that CUDA reports as possible. Temporarily uses 2 MiB of memory on each GPU.
///
/// # Errors
/// If the copy fails, or the bytes differ.
pub fn verify_peer(from: &'static Device, to: &'static Device) -> Result<(), MeasureError> {
    /// The first copy is the largest: it may use another method than a small copy.
    const COPIES: [usize; 3] = [1 << 20, 64 << 10, 64];
    /// Number of bytes after each copy that must not change.
    const GUARD: usize = 4096;
    let baseline = BaselineCopy::between_gpus(from, to, COPIES[0] + GUARD, false)?;
    let Some((target, source)) = baseline.on_gpus() else {
        return Ok(());
    };
    for (seed, bytes) in (1..).zip(COPIES) {
        let pattern = |seed: u32| {
            let words = 0..u32::try_from((bytes + GUARD) / 4).unwrap_or(u32::MAX);
            // With another seed, every byte differs.
            let words = words.map(|i| (i + 1).wrapping_mul(0x9e37_79b1) ^ (seed * 0x0101_0101));
            words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()
        };
        let (sent, stale) = (pattern(seed), pattern(seed + 100));
        source.write(0, &sent)?;
        target.write(0, &stale)?;
        baseline.begin(0, bytes)?;
        baseline.finish()?;
        let mut arrived = vec![0; bytes + GUARD];
        target.read(0, &mut arrived)?;
        if arrived[..bytes] != sent[..bytes] || arrived[bytes..] != stale[bytes..] {
            return Err(MeasureError::WrongBytes {
                from: from.ordinal(),
                to: to.ordinal(),
            });
        }
    }
    Ok(())
}

/// Measures copies from GPU `from` to GPU `to`. Temporarily uses 64 MiB of memory on each GPU.
pub fn measure_peer(from: &'static Device, to: &'static Device) -> Result<Rates, MeasureError> {
    let baseline = BaselineCopy::between_gpus(from, to, LARGEST, false)?;
    Ok(rates(&baseline, &PEER_SIZES, PEER_VOLUME)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates pairs for the sizes from 4 KiB on. `times` contains the durations of store and copy in nanoseconds.
    fn pairs(times: &[(u64, u64)]) -> Vec<Pair> {
        let pairs = STORES.iter().zip(times);
        let pairs = pairs.map(|(bytes, (store, copy))| Pair {
            bytes: *bytes,
            store: Duration::from_nanos(*store),
            copy: Duration::from_nanos(*copy),
        });
        pairs.collect()
    }

    #[test]
    fn threshold_lies_between_last_gain_and_first_loss() {
        assert_eq!(crossing(&pairs(&[(400, 7000), (1000, 7000)])), 8 << 10);
        assert_eq!(crossing(&pairs(&[(8000, 7000), (9000, 7000)])), 0);
        assert_eq!(crossing(&[]), 0);
        // In the first two cases, the gain at 8 KiB equals the loss at 16 KiB. In the third case, the loss is three
        // times the gain.
        let halfway = pairs(&[(1, 5), (3, 4), (5, 4), (9, 4)]);
        assert_eq!(crossing(&halfway), 12 << 10);
        assert_eq!(crossing(&pairs(&[(1, 5), (1, 4), (7, 4)])), 12 << 10);
        assert_eq!(crossing(&pairs(&[(1, 5), (3, 4), (7, 4)])), 8 << 10);
        // A single disturbed measurement does not affect the result.
        assert_eq!(crossing(&pairs(&[(9, 5), (3, 4), (5, 4)])), 12 << 10);
    }

    #[test]
    fn measurement_is_bounded_by_volume_time_and_copy_count() {
        let short = Duration::from_micros(10);
        let enough = |copies, bytes, took| is_enough(copies, bytes, VOLUME, took);
        assert!(!enough(VOLUME / SIZES[0] - 1, SIZES[0], short));
        assert!(enough(VOLUME / SIZES[0], SIZES[0], short));
        assert!(enough(MIN_COPIES, SIZES[0], LIMIT), "a slow bus");
        assert!(!enough(MIN_COPIES - 1, LARGEST, LIMIT * 10));
        assert!(enough(MIN_COPIES, LARGEST, short));
    }
}
