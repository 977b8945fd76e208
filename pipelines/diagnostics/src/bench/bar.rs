//! Measures CPU stores and reads through a BAR mapping of GPU memory. The copy function of daq and reference copies
//! alternate on the same mapping.

use super::figures::{median, micros_since};
use super::table::{Cell, Table};
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

/// The time per store of one size, in microseconds.
struct Row {
    bytes: usize,
    /// Offsets of the target and of the source in bytes.
    skew: (usize, usize),
    /// The time of each method (see [`methods`]); NaN if the processor lacks instructions that the method needs.
    times: Vec<f64>,
}

impl Row {
    /// Returns the time of the fastest reference copy divided by the time of daq's copy. A value of 1 or more means
    /// that daq is at least as fast.
    fn ratio(&self) -> f64 {
        let references = methods()
            .into_iter()
            .zip(&self.times)
            .filter(|(method, _)| method.is_some_and(|method| REFERENCES.contains(&method)));
        let best = references.map(|(_, time)| *time).fold(f64::NAN, f64::min);
        best / self.times[0]
    }
}

/// Describes a store or a load, for example `4 KiB to +3`.
fn name(bytes: usize, skew: (usize, usize)) -> String {
    let size = ByteSize(bytes as u64);
    match skew {
        (0, 0) => size.to_string(),
        (to, 0) => format!("{size} to +{to}"),
        (0, from) => format!("{size} from +{from}"),
        (to, from) => format!("{size} to +{to} from +{from}"),
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

fn measure(mapped: &BarMapping, rounds: usize, sizes: &[usize]) -> Result<Vec<Row>, BenchError> {
    let stores = RawStores::new(mapped)?;
    let (source, methods) = (source(), methods());
    let mut rows = Vec::new();
    for bytes in sizes.iter().map(|bytes| (*bytes).clamp(1, MAX_STORE_BYTES)) {
        for skew in SKEWS {
            let (to, from) = (skew.0, &source[skew.1..][..bytes]);
            let copies = (TURN_BYTES / bytes).clamp(1, MAX_COPIES_PER_TURN);
            let mut times = vec![Vec::new(); methods.len()];
            for turn in 0..rounds * TURNS_PER_ROUND {
                // The order of the methods changes in every turn, so that no method always benefits from the same
                // predecessor.
                for i in 0..methods.len() {
                    let at = (i + turn) % methods.len();
                    times[at].extend(match methods[at] {
                        None => Some(time(copies, || mapped.copy_to(to, from))?),
                        Some(method) if method.is_supported() => Some(time(copies, || {
                            stores.store(method, to, from);
                            Ok(())
                        })?),
                        Some(_) => None,
                    });
                }
            }
            rows.push(Row {
                bytes,
                skew,
                times: times.iter().map(|times| median(times)).collect(),
            });
        }
    }
    Ok(rows)
}

/// Builds a table. `show` converts each time to the value that the table shows with `digits` decimals.
fn table(title: String, rows: &[Row], digits: usize, show: impl Fn(&Row, f64) -> f64) -> Table {
    let methods = StoreMethod::ALL.map(StoreMethod::name).join(" | ");
    let columns = format!("store | daq | {methods} | best reference ÷ daq");
    let rows = rows.iter().map(|row| {
        let mut cells = vec![name(row.bytes, row.skew).into()];
        let times = row.times.iter();
        cells.extend(times.map(|time| Cell::Number(show(row, *time), digits)));
        cells.push(Cell::Number(row.ratio(), 3));
        cells
    });
    Table::of(title, &columns, rows)
}

fn title(mapped: &BarMapping, common: &Common, unit: &str) -> String {
    format!(
        "{}, mapped by {}: {unit} of a CPU store over the bus, until the store has left the CPU; medians of {} rounds",
        mapped.device().name(),
        mapped.backend(),
        common.rounds * TURNS_PER_ROUND
    )
}

/// Measures the bandwidth of stores by size in GB/s.
pub(super) fn bandwidth(
    common: &Common,
    mapped: &BarMapping,
    sizes: &[usize],
) -> Result<Table, BenchError> {
    let rows = measure(mapped, common.rounds, sizes)?;
    let title = title(mapped, common, "GB/s");
    Ok(table(title, &rows, 2, |row, time| {
        row.bytes as f64 / 1e3 / time
    }))
}

/// Measures the latency of stores and loads by size in microseconds.
pub(super) fn latency(
    common: &Common,
    mapped: &BarMapping,
    sizes: &[usize],
) -> Result<Vec<Table>, BenchError> {
    let rows = measure(mapped, common.rounds, sizes)?;
    let title = title(mapped, common, "microseconds");
    let stores = table(title, &rows, 3, |_, time| time);
    Ok(vec![stores, loads(common, mapped, sizes)?])
}

fn loads(common: &Common, mapped: &BarMapping, sizes: &[usize]) -> Result<Table, BenchError> {
    let raw = RawStores::new(mapped)?;
    let source = source();
    mapped.copy_to(0, &source)?;
    let title = format!(
        "{}, mapped by {}: time of a CPU read over the bus, in microseconds; medians of {} rounds",
        mapped.device().name(),
        mapped.backend(),
        common.rounds
    );
    let columns = "read | daq | memcpy | memcpy ÷ daq";
    let mut table = Table::new(title, columns);
    let mut to = vec![0; MAX_LOAD_BYTES];
    for bytes in sizes.iter().filter(|bytes| **bytes <= MAX_LOAD_BYTES) {
        for (skew, _) in [SKEWS[0], SKEWS[1]] {
            let to = &mut to[..*bytes];
            let (mut own, mut plain) = (Vec::new(), Vec::new());
            for _ in 0..common.rounds {
                own.push(time(1, || mapped.copy_from(skew, to))?);
                plain.push(time(1, || {
                    raw.load(skew, to);
                    Ok(())
                })?);
            }
            mapped.copy_from(skew, to)?;
            if *to != source[skew..skew + *bytes] {
                return Err(BenchError::Thread(format!(
                    "verification failed: {bytes} bytes at offset {skew} differ from the bytes that were stored; this is a defect in daq"
                )));
            }
            let (own, plain) = (median(&own), median(&plain));
            table.row(vec![
                name(*bytes, (0, skew)).into(),
                Cell::Number(own, 2),
                Cell::Number(plain, 2),
                Cell::Number(plain / own, 3),
            ]);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::gpu::bar_mapping::Refusal;

    #[test]
    fn ratio_uses_fastest_reference_and_names_offsets() {
        let row = Row {
            bytes: 4096,
            skew: (3, 1),
            times: methods()
                .into_iter()
                .map(|method| match method {
                    None => 0.4,
                    Some(StoreMethod::Memcpy) => 0.5,
                    Some(StoreMethod::Avx2) => 0.2,
                    Some(StoreMethod::Avx512) => f64::NAN,
                    Some(_) => 0.1,
                })
                .collect(),
        };
        assert_eq!(
            row.ratio(),
            0.5,
            "direct stores do not count as a reference"
        );
        assert_eq!(name(row.bytes, row.skew), "4 KiB to +3 from +1");
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
