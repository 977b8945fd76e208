//! Measures CPU stores and reads through a BAR mapping of GPU memory. The copy function of daq and reference copies
//! alternate on the same mapping.

use super::chart::Chart;
use super::figures::micros_since;
use super::table::{Cell, Table, numbers, size};
use super::{BenchError, Common};
use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError, Unmappable};
use daq_core::gpu::driver::Device;
use daq_core::gpu::{Backend, Writer};
use daq_core::staging::{RawStores, StoreMethod};
use daq_core::units::ByteSize;
use std::sync::Arc;
use std::time::Instant;

/// Maximum size of a store in bytes.
pub(super) const MAX_STORE_BYTES: usize = 4 << 20;
/// Maximum size of a CPU read in bytes. Reads are slow, because every few bytes need one round trip over the bus.
const MAX_LOAD_BYTES: usize = 64 << 10;
/// Offsets of the target and of the source from the start of a page, in bytes.
const SKEWS: [(usize, usize); 4] = [(0, 0), (1, 0), (0, 3), (3, 1)];
/// Number of turns of each method per round. The methods alternate.
const TURNS_PER_ROUND: usize = 8;
/// Number of bytes per turn. Each turn makes at least one copy and at most [`MAX_COPIES_PER_TURN`] copies.
const TURN_BYTES: usize = 256 << 10;
const MAX_COPIES_PER_TURN: usize = 256;
/// Reference copies. The copy function of daq must not be slower than any reference copy.
const REFERENCES: [StoreMethod; 3] = [StoreMethod::Memcpy, StoreMethod::Avx2, StoreMethod::Avx512];

/// Returns the methods in the order of the table columns. `None` is the copy function of daq.
fn methods() -> Vec<Option<StoreMethod>> {
    let others = StoreMethod::ALL.into_iter().map(Some);
    std::iter::once(None).chain(others).collect()
}

/// A store or a load: its size in bytes, and the offsets of the target and of the source in bytes.
type Access = (usize, (usize, usize));

/// Returns the time of the fastest reference copy divided by the time of daq's copy. A value of 1 or more means that daq
/// is at least as fast. `times` contains the time of each method (see [`methods`]); NaN if the processor lacks
/// instructions that the method needs.
fn ratio(times: &[[f64; 1]]) -> f64 {
    let timed = methods().into_iter().zip(times);
    let references =
        timed.filter(|(method, _)| method.is_some_and(|method| REFERENCES.contains(&method)));
    let best = references.map(|(_, [time])| *time).fold(f64::NAN, f64::min);
    best / times[0][0]
}

/// Describes a store or a load, for example `4 KiB to +3`. An aligned access is a size, so that charts contain it.
fn name((bytes, skew): Access) -> Cell {
    let name = ByteSize(bytes as u64);
    match skew {
        (0, 0) => size(bytes),
        (to, 0) => format!("{name} to +{to}").into(),
        (0, from) => format!("{name} from +{from}").into(),
        (to, from) => format!("{name} to +{to} from +{from}").into(),
    }
}

/// Opens a mapping for CPU stores.
pub(super) fn open(device: &'static Device) -> Result<Arc<BarMapping>, Unmappable> {
    let bytes = MAX_STORE_BYTES + SKEWS.len();
    BarMapping::new(device, bytes, Writer::Cpu, &Backend::ALL)
}

/// Returns a table with each backend's reason why no mapping can be opened.
pub(super) fn refusals(unmappable: &Unmappable) -> Table {
    let title = "no backend maps GPU memory for CPU stores; the copy engine does all copies";
    let mut table = Table::new(title, "backend | reason");
    for refusal in &unmappable.refused {
        table.row(vec![
            refusal.backend.name().into(),
            refusal.why.clone().into(),
        ]);
    }
    table
}

/// Returns the mean time per copy in microseconds, measured over `copies` copies.
fn time(
    copies: usize,
    mut copy: impl FnMut() -> Result<(), BarMappingError>,
) -> Result<f64, BarMappingError> {
    let start = Instant::now();
    for _ in 0..copies {
        copy()?;
    }
    Ok(micros_since(start) / copies as f64)
}

/// Returns source data in which neighbouring bytes differ.
fn source() -> Vec<u8> {
    (0..=250)
        .cycle()
        .take(MAX_STORE_BYTES + SKEWS.len())
        .collect()
}

/// Measures CPU stores by size. `show` converts bytes and microseconds of a store to the value in `unit` that the table
/// shows with `digits` decimals.
fn stores(
    common: &Common,
    mapped: &BarMapping,
    sizes: &[usize],
    (unit, digits): (&str, usize),
    show: fn(usize, f64) -> f64,
) -> Result<Table, BenchError> {
    let stores = RawStores::new(mapped)?;
    let (source, methods) = (source(), methods());
    let accesses = sizes
        .iter()
        .flat_map(|bytes| SKEWS.map(|skew| (*bytes, skew)));
    let accesses: Vec<Access> = accesses.collect();
    let rounds = common.rounds * TURNS_PER_ROUND;
    let compared = common.compare_in(rounds, true, &accesses, &methods, |access, method| {
        let (bytes, (to, skew)) = *access;
        let from = &source[skew..][..bytes];
        let copies = (TURN_BYTES / bytes).clamp(1, MAX_COPIES_PER_TURN);
        Ok(match method {
            None => Some([time(copies, || mapped.copy_to(to, from))?]),
            Some(method) if method.is_supported() => Some([time(copies, || {
                stores.store(*method, to, from);
                Ok(())
            })?]),
            Some(_) => None,
        })
    })?;
    let title = format!(
        "{}, mapped by {}: {unit} of a CPU store over the bus, until the store has left the CPU",
        mapped.device().name(),
        mapped.backend(),
    );
    let methods = StoreMethod::ALL.map(StoreMethod::name);
    let columns = format!(
        "store | daq | {} | best reference ÷ daq",
        methods.join(" | ")
    );
    let chart = match unit {
        "GB/s" => Chart::rates("Rate of CPU stores to GPU memory", "GB/s"),
        _ => Chart::times("Time of CPU stores to GPU memory", "µs"),
    };
    let chart = chart
        .over("store", "size of the store")
        .columns(&[&["daq"], &methods[..]].concat())
        .own(&["daq"]);
    let rows = compared.by_scenario().map(|(access, times)| {
        let mut cells = vec![name(*access)];
        cells.extend(
            times
                .iter()
                .map(|[time]| Cell::Number(show(access.0, *time), digits)),
        );
        cells.push(Cell::Number(ratio(&times), 3));
        cells
    });
    Ok(Table::of(compared.title(&title), &columns, rows).with(chart))
}

/// Measures the bandwidth of stores by size in GB/s.
pub(super) fn bandwidth(
    common: &Common,
    mapped: &BarMapping,
    sizes: &[usize],
) -> Result<Table, BenchError> {
    let rate = |bytes: usize, micros: f64| bytes as f64 / 1e3 / micros;
    stores(common, mapped, sizes, ("GB/s", 2), rate)
}

/// Measures the latency of stores by size in microseconds.
pub(super) fn latency(
    common: &Common,
    mapped: &BarMapping,
    sizes: &[usize],
) -> Result<Table, BenchError> {
    stores(common, mapped, sizes, ("microseconds", 3), |_, micros| {
        micros
    })
}

/// Measures the latency of loads by size in microseconds.
pub(super) fn loads(
    common: &Common,
    mapped: &BarMapping,
    sizes: &[usize],
) -> Result<Table, BenchError> {
    let raw = RawStores::new(mapped)?;
    let source = source();
    mapped.copy_to(0, &source)?;
    let sizes = sizes.iter().filter(|bytes| **bytes <= MAX_LOAD_BYTES);
    let accesses = sizes.flat_map(|bytes| [0, 1].map(|skew| (*bytes, (0, skew))));
    let accesses: Vec<Access> = accesses.collect();
    let mut to = vec![0; MAX_LOAD_BYTES];
    let compared = common.compare(&accesses, &[true, false], |access, is_own| {
        let (bytes, (_, skew)) = *access;
        let to = &mut to[..bytes];
        let taken = time(1, || {
            if *is_own {
                return mapped.copy_from(skew, to);
            }
            raw.load(skew, to);
            Ok(())
        })?;
        if *to != source[skew..skew + bytes] {
            return Err(BenchError::Thread(format!(
                "verification failed: {bytes} bytes at offset {skew} differ from the bytes that were stored; this is a defect in daq"
            )));
        }
        Ok(Some([taken]))
    })?;
    let title = format!(
        "{}, mapped by {}: time of a CPU read over the bus, in microseconds",
        mapped.device().name(),
        mapped.backend(),
    );
    let rows = compared.by_scenario().map(|(access, times)| {
        let (own, plain) = (times[0][0], times[1][0]);
        let mut cells = vec![name(*access)];
        cells.extend(numbers([own, plain], 2));
        cells.push(Cell::Number(plain / own, 3));
        cells
    });
    let columns = "read | daq | memcpy | memcpy ÷ daq";
    let chart = Chart::times("Time of CPU reads of GPU memory", "µs")
        .over("read", "size of the read")
        .columns(&["daq", "memcpy"])
        .own(&["daq"]);
    Ok(Table::of(compared.title(&title), columns, rows).with(chart))
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::gpu::bar_mapping::Refusal;

    #[test]
    fn ratio_uses_fastest_reference_and_names_offsets() {
        let times = methods().into_iter().map(|method| match method {
            None => [0.4],
            Some(StoreMethod::Memcpy) => [0.5],
            Some(StoreMethod::Avx2) => [0.2],
            Some(StoreMethod::Avx512) => [f64::NAN],
            Some(_) => [0.1],
        });
        assert_eq!(
            ratio(&times.collect::<Vec<_>>()),
            0.5,
            "direct stores do not count as a reference"
        );
        assert_eq!(name((4096, (3, 1))).to_string(), "4 KiB to +3 from +1");
    }

    #[test]
    fn every_refusal_is_reported() {
        let refused = Backend::ALL.map(|backend| Refusal {
            backend,
            why: format!("no {backend} here"),
        });
        let text = refusals(&Unmappable {
            refused: refused.to_vec(),
        })
        .to_string();
        for backend in Backend::ALL {
            assert!(text.contains(&format!("no {backend} here")), "{text}");
        }
    }
}
