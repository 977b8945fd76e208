//! Tests LitePCIe's own gateware with Verilator: its registers and bus output, and the gateware together with a whole
//! run of daq.

mod bench;
mod compare;
mod driven;
mod gateware;
mod memory;
mod served;
mod stop;
mod sys;
mod whole;

use bench::{BASE, Bench, IRQ_DISABLE};
use daq_testkit::skip;
use gateware::Gateware;
use std::sync::atomic::Ordering;

/// Creates the real core with memory for `slots` slots. Returns the reason if that is not possible.
fn gateware_bench(slots: u32, slot: u32) -> Result<Bench<Gateware>, String> {
    let card = Gateware::new()?;
    let names = card.names().clone();
    Ok(Bench::new(card, names, slots, slot))
}

macro_rules! gateware {
    ($slots:expr, $slot:expr) => {
        match gateware_bench($slots, $slot) {
            Ok(bench) => bench,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Returns the value of `loop_status` after `finished` transfers over `slots` slots: the loop count and the last slot.
fn status(finished: u64, slots: u32) -> u32 {
    let last = finished.saturating_sub(1);
    let (round, index) = (last / u64::from(slots), last % u64::from(slots));
    u32::try_from(((round % (1 << 16)) << 16) | index).unwrap()
}

/// In loop mode, all data of a transfer must be in its slot before `loop_status` reports the transfer. Each transfer
/// raises one interrupt. `loop_status` shows the last completed transfer, so it has the same value before and after the
/// first transfer.
#[test]
fn gateware_data_arrives_before_completion() {
    const SLOTS: u32 = 5;
    const SLOT: u32 = 4096;
    let mut bench = gateware!(SLOTS, SLOT);
    let irq = 1 << bench.names.constant("pcie_dma0_writer_interrupt");
    bench.write("pcie_msi_enable", irq);
    bench.start(SLOTS, SLOT);
    assert_eq!(bench.writer("table_level"), SLOTS);
    assert_eq!(bench.writer("table_loop_status"), 0);
    assert_eq!(bench.memory.interrupts(), 0);

    let mut finished = 0;
    while finished < 4 * u64::from(SLOTS) {
        bench.step();
        let reported = bench.memory.interrupts();
        assert!(
            reported <= finished + 1,
            "a step must be shorter than a transfer, but caused more than one interrupt"
        );
        if reported > finished {
            let slot = u32::try_from(finished % u64::from(SLOTS)).unwrap();
            bench.assert_holds(slot, SLOT, finished);
            bench.clear(slot, SLOT);
            assert_eq!(bench.read("pcie_msi_vector"), irq);
            bench.write("pcie_msi_clear", irq);
            assert_eq!(bench.read("pcie_msi_vector"), 0);
            finished += 1;
        }
        assert_eq!(
            bench.writer("table_loop_status"),
            status(finished, SLOTS),
            "{finished}"
        );
        assert_eq!(bench.writer("table_level"), SLOTS);
    }
    assert_eq!(bench.memory.faults(), []);
}

/// After a stop, nothing may be written. After a start, all counts restart from 0.
#[test]
fn gateware_after_stop_writes_nothing() {
    const SLOTS: u32 = 3;
    const SLOT: u32 = 1024;
    let mut bench = gateware!(SLOTS, SLOT);
    for _ in 0..10 {
        bench.start(SLOTS, SLOT);
        // Five complete transfers, and the beginning of another.
        let feed = bench.card.feed();
        feed.store(5 * u64::from(SLOT) / 8 + 70, Ordering::Relaxed);
        bench.finish();
        assert_eq!(bench.writer("table_loop_status"), status(5, SLOTS));
        bench.assert_holds(4 % SLOTS, SLOT, 4);
        // The stream continues after the stop.
        feed.store(u64::MAX, Ordering::Relaxed);
        bench.stop();
        assert_eq!(bench.writer("table_level"), 0);
        assert_eq!(bench.writer("table_loop_status"), 0);
        assert_eq!(bench.writer("enable"), 2, "idle");
        let written = bench.memory.written();
        for _ in 0..100 {
            bench.step();
        }
        assert_eq!(bench.memory.written(), written);
    }
    assert_eq!(
        bench.memory.interrupts(),
        0,
        "interrupts are disabled, so none must arrive"
    );
}

/// Without loop mode, the table becomes empty. Descriptors that are pushed later are processed later.
#[test]
fn gateware_empty_table_stops_transfers() {
    const SLOT: u32 = 512 + 64;
    let mut bench = gateware!(4, SLOT);
    let irq = 1 << bench.names.constant("pcie_dma0_writer_interrupt");
    bench.write("pcie_msi_enable", irq);
    bench.set_writer("table_reset", 1);
    bench.push(
        "writer",
        SLOT | IRQ_DISABLE,
        Bench::<Gateware>::slot(0, SLOT),
    );
    bench.push("writer", SLOT, Bench::<Gateware>::slot(1, SLOT));
    bench.set_writer("enable", 1);
    let feed = bench.card.feed();
    feed.store(1 << 20, Ordering::Relaxed);
    bench.finish();
    bench.assert_holds(0, SLOT, 0);
    bench.assert_holds(1, SLOT, 1);
    assert_eq!(bench.writer("table_level"), 0);
    assert_eq!(bench.writer("table_loop_status"), 2);
    assert_eq!(
        bench.memory.interrupts(),
        1,
        "the first descriptor must not raise an interrupt"
    );

    bench.push("writer", SLOT, Bench::<Gateware>::slot(2, SLOT));
    bench.finish();
    bench.assert_holds(2, SLOT, 2);
    assert_eq!(bench.writer("table_loop_status"), 3);
    assert_eq!(bench.memory.written(), 3 * u64::from(SLOT));
}

/// The table has room for 256 descriptors; further descriptors are lost.
#[test]
fn gateware_full_table_ignores_descriptors() {
    let mut bench = gateware!(1, 64);
    bench.set_writer("table_reset", 1);
    for number in 0..260 {
        bench.push("writer", 64, BASE);
        assert_eq!(bench.writer("table_level"), (number + 1).min(256));
    }
}

/// The device writes more than one loop without being read. The counter must show the number of lost transfers.
#[test]
fn gateware_unread_loops_are_counted() {
    const SLOTS: u32 = 4;
    const SLOT: u32 = 256;
    let mut bench = gateware!(SLOTS, SLOT);
    bench.start(SLOTS, SLOT);
    let feed = bench.card.feed();
    feed.store(11 * u64::from(SLOT) / 8, Ordering::Relaxed);
    bench.finish();
    assert_eq!(bench.writer("table_loop_status"), status(11, SLOTS));
    for (slot, transfer) in [(0, 8), (1, 9), (2, 10), (3, 7)] {
        bench.assert_holds(slot, SLOT, transfer);
    }
}

/// The host answers the core's memory reads. The data that the core's reader fetches must return through its writer.
#[test]
fn gateware_loopback_preserves_memory() {
    const BYTES: u32 = 2048;
    let mut bench = gateware!(2, BYTES);
    let data: Vec<u8> = (0..BYTES)
        .map(|i| (i * 7 + i / 256).to_le_bytes()[0])
        .collect();
    let (from, to) = (
        Bench::<Gateware>::slot(0, BYTES),
        Bench::<Gateware>::slot(1, BYTES),
    );
    bench.memory.put(from, &data);
    bench.write("pcie_dma0_loopback_enable", 1);
    for (engine, address) in [("writer", to), ("reader", from)] {
        bench.write(&format!("pcie_dma0_{engine}_table_reset"), 1);
        bench.push(engine, BYTES, address);
        bench.write(&format!("pcie_dma0_{engine}_enable"), 1);
    }
    bench.finish();
    assert_eq!(bench.memory.get(to, BYTES as usize), data);
    assert_eq!(bench.memory.written(), u64::from(BYTES));
    assert_eq!(bench.memory.faults(), []);
}
