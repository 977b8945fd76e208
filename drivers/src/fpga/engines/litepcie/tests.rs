use super::*;
use crate::fpga::device::Identity;
use crate::fpga::mock::{Driven, Mock};
use daq_core::dma::Done;
use daq_core::region::Placement;
use daq_testkit::assert_contains;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const BASE: &str = "base = 0x2000";

/// Emulates a writer at 0x2000 that is idle while it is disabled. A reset of its table clears its counter, as in the
/// gateware.
fn core(values: &mut BTreeMap<u64, u32>, offset: u64, value: u32) -> bool {
    if offset == 0x201c {
        values.insert(0x2014, 0);
    }
    if offset == 0x2000 {
        values.insert(offset, value & 1 | (!value & 1) << 1);
    }
    offset != 0x2000
}

fn device() -> Arc<Mock> {
    Mock::new(0x1_0000, Identity::default(), core)
}

fn open(mock: &Arc<Mock>, keys: &str, directory: &Path) -> Result<Driven<Writer>, EngineError> {
    mock.open(keys, directory)
}

fn slots(count: u64) -> Slots {
    Slots {
        addresses: (0..count).map(|i| 0x8000_0000 + i * 0x1000).collect(),
        bytes: 4096,
        first: 0,
        doorbell: None,
        placement: Placement::Host,
    }
}

fn armed(mock: &Arc<Mock>, count: u64) -> Driven<Writer> {
    let mut engine = open(mock, BASE, Path::new("")).unwrap();
    engine.arm(&slots(count)).unwrap();
    mock.registers.writes();
    engine
}

/// Sets the counter register.
fn status(mock: &Mock, count: u64, index: u64) {
    let value = u32::try_from(count << 16 | index).unwrap();
    mock.registers.set(0x2014, value);
}

fn poll(engine: &mut Driven<Writer>, room: usize) -> Result<(usize, u64), EngineError> {
    let mut done = Completions::new(room, FAULTS.len());
    engine.poll(&mut done)?;
    let is_whole = |done: &Done| done.length == 4096 && !done.is_bad;
    assert!(done.as_slice().iter().all(is_whole));
    Ok((done.as_slice().len(), done.overrun()))
}

#[test]
fn litepcie_start_and_stop_write_registers_in_order() {
    let mock = device();
    let mut engine = open(&mock, BASE, Path::new("")).unwrap();
    assert_eq!(mock.registers.writes(), []);
    let ring = Slots {
        first: 3,
        ..slots(4)
    };
    engine.arm(&ring).unwrap();
    let mut expected = vec![(0x2000, 0), (0x201c, 1), (0x2010, 0)];
    for slot in [3, 0, 1, 2] {
        expected.push((0x2004, 4096 | 1 << 24 | 1 << 25));
        expected.push((0x2008, 0x8000_0000 + slot * 0x1000));
        expected.push((0x200c, 0));
    }
    expected.extend([(0x2010, 1), (0x2000, 1)]);
    assert_eq!(mock.registers.writes(), expected);
    engine.credit(5);
    engine.quiesce(Duration::ZERO).unwrap();
    engine.quiesce(Duration::ZERO).unwrap();
    assert_eq!(
        mock.registers.writes(),
        [(0x2000, 0), (0x2010, 0), (0x201c, 1)],
        "the writer is disabled before the reset that clears the counter"
    );
}

#[test]
fn litepcie_loop_status_gives_completed_slots() {
    let mock = device();
    let mut engine = armed(&mock, 8);
    assert_eq!(poll(&mut engine, 8), Ok((0, 0)));
    status(&mock, 0, 1);
    assert_eq!(poll(&mut engine, 8), Ok((1, 0)));
    status(&mock, 0, 5);
    assert_eq!(poll(&mut engine, 3), Ok((3, 0)), "room for three");
    assert_eq!(poll(&mut engine, 8), Ok((1, 0)));
    assert_eq!(engine.overwritten(), Ok(0));
    status(&mock, 0, 6);
    assert_eq!(engine.overwritten(), Ok(1));
    // Five transfers were reported. 16 are finished, and the transfers up to 18 may be overwriting transfer 10 and
    // earlier ones.
    status(&mock, 2, 0);
    assert_eq!(engine.overwritten(), Ok(11));
    assert_eq!(poll(&mut engine, 8), Ok((5, 6)));
    // The stop loses no transfers: those that were not polled, including the last one, are reported after it.
    status(&mock, 2, 2);
    engine.quiesce(Duration::ZERO).unwrap();
    assert_eq!(mock.registers.get(0x2014), 0);
    assert_eq!(engine.overwritten(), Ok(12));
    assert_eq!(poll(&mut engine, 2), Ok((2, 0)), "room for two");
    assert_eq!(poll(&mut engine, 8), Ok((1, 0)));
    assert_eq!(poll(&mut engine, 8), Ok((0, 0)));
}

#[test]
fn litepcie_stop_reports_known_transfers() {
    // Each row: pass and index at the stop, number of reported transfers, number of overwritten transfers.
    for (round, index, reported, overrun) in [
        (0, 0, 0, 0),
        (0, 1, 2, 0),
        (0, 6, 7, 0),
        // The eighth transfer is finished, and the ninth may have started to overwrite the first.
        (0, 7, 7, 1),
        (3, 0, 7, 18),
    ] {
        let mock = device();
        let mut engine = armed(&mock, 8);
        status(&mock, round, index);
        engine.quiesce(Duration::ZERO).unwrap();
        assert_eq!(
            poll(&mut engine, 8),
            Ok((reported, overrun)),
            "{round} {index}"
        );
        assert_eq!(poll(&mut engine, 8), Ok((0, 0)));
        // After a new start the count begins at 0.
        engine.arm(&slots(8)).unwrap();
        assert_eq!(poll(&mut engine, 8), Ok((0, 0)));
    }
    // A writer that does not become idle: the current transfer may still finish, and is not reported.
    let mock = device();
    let mut engine = armed(&mock, 8);
    status(&mock, 0, 7);
    mock.registers.hold(0x2000, 0);
    assert!(engine.quiesce(Duration::ZERO).is_err());
    assert_eq!(poll(&mut engine, 8), Ok((5, 2)));
    // A writer that cannot report idle loses its counter before it has stopped, so all transfers that were not polled
    // count as lost.
    let mock = device();
    mock.registers.hold(0x2000, 0);
    let mut engine = armed(&mock, 8);
    status(&mock, 0, 3);
    engine.quiesce(Duration::ZERO).unwrap();
    assert_eq!(
        mock.registers.writes(),
        [(0x2010, 0), (0x201c, 1), (0x2000, 0), (0x201c, 1)]
    );
    assert_eq!(engine.overwritten(), Ok(3));
    assert_eq!(poll(&mut engine, 8), Ok((0, 3)));
}

#[test]
fn litepcie_impossible_status_is_fault() {
    let faults = |error| match error {
        Err(EngineError::Faulted { faults, .. }) => faults,
        other => panic!("{other:?}"),
    };
    let mock = device();
    let mut engine = armed(&mock, 8);
    status(&mock, 0, 8);
    assert_eq!(faults(poll(&mut engine, 8)), ["index-beyond-table"]);
    status(&mock, 3, 4);
    poll(&mut engine, 8).unwrap();
    // Simulates a card that was reset by another program.
    status(&mock, 0, 0);
    assert_eq!(faults(poll(&mut engine, 8)), ["count-went-back"]);
    assert!(engine.overwritten().is_err());
    mock.registers.remove();
    let gone = EngineError::Gone {
        device: "mock".into(),
    };
    assert_eq!(poll(&mut engine, 8), Err(gone.clone()));
    assert_eq!(engine.overwritten(), Err(gone.clone()));
    assert_eq!(engine.quiesce(Duration::ZERO), Ok(()));
    assert_eq!(engine.arm(&slots(8)), Err(gone));
}

/// Simulates a card that was reset while its pass counter was in the upper half, or at its end: the cleared counter looks
/// like one that wrapped.
#[test]
fn litepcie_reset_card_is_fault_without_false_loss() {
    for (passes, index) in [(40_000, 3), (65_535, 6)] {
        let mock = device();
        let mut engine = armed(&mock, 8);
        for pass in [20_000, 40_000, passes] {
            status(&mock, pass, index);
            poll(&mut engine, 8).unwrap();
        }
        status(&mock, 0, 0);
        mock.registers.set(0x2000, 2);
        let error = poll(&mut engine, 8).unwrap_err();
        assert!(error.to_string().contains("disabled"), "{error}");
        assert!(engine.overwritten().is_err());
        // Nothing is reported or lost after the stop either, and the writer starts again.
        engine.quiesce(Duration::ZERO).unwrap();
        assert_eq!(poll(&mut engine, 8), Ok((0, 0)));
        engine.arm(&slots(8)).unwrap();
        status(&mock, 0, 1);
        assert_eq!(poll(&mut engine, 8), Ok((1, 0)));
    }
    // A counter that wraps while the writer is enabled.
    let mock = device();
    let mut engine = armed(&mock, 8);
    for pass in [20_000, 40_000, 65_535] {
        status(&mock, pass, 7);
        poll(&mut engine, 8).unwrap();
    }
    status(&mock, 0, 1);
    assert_eq!(poll(&mut engine, 8), Ok((2, 0)));
}

#[test]
fn litepcie_disabled_idle_writer_is_fault() {
    let mock = device();
    let mut engine = armed(&mock, 8);
    status(&mock, 0, 3);
    assert_eq!(poll(&mut engine, 8), Ok((3, 0)));
    engine.idle.demand();
    assert_eq!(poll(&mut engine, 8), Ok((0, 0)));
    // The card was reset before its first transfer, or another program stopped the writer.
    mock.registers.set(0x2000, 2);
    engine.idle.demand();
    let error = poll(&mut engine, 8).unwrap_err();
    assert!(error.to_string().contains("disabled"), "{error}");
}

#[test]
fn litepcie_busy_writer_times_out() {
    let mock = device();
    let mut engine = armed(&mock, 8);
    mock.registers.hold(0x2000, 0);
    assert!(engine.quiesce(Duration::ZERO).is_err());
    let error = engine.arm(&slots(8)).unwrap_err().to_string();
    assert!(error.contains("reset the card"), "{error}");
    // A core that does not report idle is assumed to be idle.
    let mock = device();
    mock.registers.hold(0x2000, 0);
    let mut engine = armed(&mock, 8);
    assert_eq!(engine.quiesce(Duration::ZERO), Ok(()));
}

#[test]
fn litepcie_unreachable_slots_are_rejected() {
    let mock = device();
    let mut engine = open(&mock, BASE, Path::new("")).unwrap();
    let refused =
        |slots: Slots, engine: &mut Driven<Writer>| engine.arm(&slots).unwrap_err().to_string();
    let mut high = slots(8);
    high.addresses[7] = 0x1_0000_0000;
    let error = refused(high, &mut engine);
    assert!(error.contains("32-bit addresses"), "{error}");
    let error = refused(slots(3), &mut engine);
    assert!(error.contains("at least 4"), "{error}");
    assert!(refused(slots(257), &mut engine).contains("1 to 256"));
    assert_eq!(mock.registers.writes(), []);
    // The register contents belong to a different design.
    mock.registers.set(0x2010, 0x1fc1);
    let error = open(&mock, BASE, Path::new("")).err().unwrap().to_string();
    assert_contains!(error => "0x1fc1", "0x2010");
    assert!(open(&mock, "base = 0xfff0", Path::new("")).is_err());
}

#[test]
fn litepcie_running_writer_is_stopped_first() {
    let mock = device();
    let mut engine = open(&mock, BASE, Path::new("")).unwrap();
    mock.registers.set(0x2000, 1);
    engine.arm(&slots(4)).unwrap();
    assert_eq!(
        mock.registers.writes()[..4],
        [(0x2010, 0), (0x201c, 1), (0x2000, 0), (0x201c, 1)]
    );
}

#[test]
fn litepcie_register_outside_bar_is_rejected_on_open() {
    let directory = tempfile::tempdir().unwrap();
    let reported = |writer: u64, enable: u64, clear: u64| {
        let text = format!(
            "csr_register,pcie_dma0_writer_enable,{writer:#x},1,rw\n\
             csr_register,pcie_msi_enable,{enable:#x},1,rw\n\
             csr_register,pcie_msi_clear,{clear:#x},1,rw\n"
        );
        std::fs::write(directory.path().join("csr.csv"), text).unwrap();
        let opened = open(&device(), "csr = \"csr.csv\"", directory.path());
        opened.err().map(|error| error.to_string())
    };
    assert_eq!(reported(0xffe0, 0xfffc, 0xfff8), None);
    for (writer, enable, clear) in [
        (0xffe4, 0, 0),
        (0x2002, 0, 0),
        (u64::MAX - 3, 0, 0),
        (0x2000, 0x1_0000, 0),
        (0x2000, 0x2802, 0),
        (0x2000, 0x2800, u64::MAX - 1),
    ] {
        let error = reported(writer, enable, clear).unwrap();
        assert_contains!(error => "csr.csv belongs to the loaded design");
    }
}

#[test]
fn litepcie_interrupts_and_wide_addresses_follow_csr_csv() {
    let directory = tempfile::tempdir().unwrap();
    let text = "\
csr_register,pcie_dma0_writer_enable,0x2000,1,rw
csr_register,pcie_msi_enable,0x2800,1,rw
csr_register,pcie_msi_clear,0x2804,1,rw
constant,pcie_dma0_writer_interrupt,3,,
constant,dma_addr_width,64,,
";
    std::fs::write(directory.path().join("csr.csv"), text).unwrap();
    let keys = "csr = \"csr.csv\"\ncompletion = \"interrupt\"";
    let mock = device();
    mock.registers.set(0x2800, 1);
    let mut engine = open(&mock, keys, directory.path()).unwrap();
    let mut ring = slots(4);
    ring.addresses[3] = 0x12_0000_0000;
    engine.arm(&ring).unwrap();
    let writes = mock.registers.writes();
    assert!(writes.contains(&(0x200c, 0x12)) && writes.contains(&(0x2800, 1 << 3 | 1)));
    assert!(
        writes.contains(&(0x2004, 4096 | 1 << 25)),
        "with interrupts"
    );
    mock.interrupt(0);
    assert_eq!(engine.wait(Duration::MAX), Ok(true));
    assert_eq!(mock.registers.writes(), [(0x2804, 1 << 3)]);
    assert_eq!(engine.wait(Duration::ZERO), Ok(true));
    engine.quiesce(Duration::ZERO).unwrap();
    assert!(mock.registers.writes().contains(&(0x2800, 1)));
    // One vector per interrupt, and no register that acknowledges interrupts.
    std::fs::write(
        directory.path().join("csr.csv"),
        text.replace("pcie_msi_clear", "another"),
    )
    .unwrap();
    let mut engine = open(&mock, keys, directory.path()).unwrap();
    assert_eq!(mock.events.lock().unwrap().len(), 5);
    engine.arm(&ring).unwrap();
    mock.registers.writes();
    mock.interrupt(4);
    assert_eq!(engine.wait(Duration::MAX), Ok(true));
    assert_eq!(mock.registers.writes(), []);
    let error = open(&mock, "csr = \"none.csv\"", directory.path());
    assert!(error.err().unwrap().to_string().contains("none.csv"));
}

proptest! {
    /// Every transfer must be reported or skipped exactly once, and none that may be overwritten may be reported.
    #[test]
    fn litepcie_counter_loses_no_transfer(
        count in 4_u64..257, steps in proptest::collection::vec((0_u64..1 << 15, 1_usize..50), 1..60),
    ) {
        let mock = device();
        let mut engine = armed(&mock, count);
        let (mut truth, mut reported) = (0, 0);
        for (step, room) in steps {
            truth += if room % 2 == 0 { step * count } else { step % 50 };
            status(&mock, truth / count % (1 << 16), truth % count);
            let (done, overrun) = poll(&mut engine, room).unwrap();
            let first = reported + overrun;
            prop_assert!(first >= (truth + AHEAD).saturating_sub(count) || done == 0);
            reported = first + done as u64;
            prop_assert!(reported <= truth + AHEAD && (done == room || reported >= truth));
            prop_assert_eq!(engine.overwritten(), Ok((truth + AHEAD).saturating_sub(count)));
        }
        engine.quiesce(Duration::ZERO).unwrap();
        let end = if truth > 0 { truth + 1 } else { 0 };
        let overwritten = engine.overwritten().unwrap();
        prop_assert_eq!(overwritten, (end + 1).saturating_sub(count));
        let (done, overrun) = poll(&mut engine, 512).unwrap();
        prop_assert_eq!(reported + overrun + done as u64, end);
        prop_assert_eq!(overrun, overwritten.saturating_sub(reported));
    }
}
