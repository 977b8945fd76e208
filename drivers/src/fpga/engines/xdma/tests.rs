use super::*;
use crate::fpga::device::Identity;
use crate::fpga::engines::POLLS_PER_CHECK;
use crate::fpga::mock::{Driven, Mock};
use daq_core::dma::DmaMap;
use daq_core::dma::{SlotLayout, Stopped};
use daq_core::region::{HostOptions, Placement, Region};
use daq_testkit::assert_contains;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Emulates the registers of a core with credits: set and clear registers, and a busy bit that equals RUN.
fn core(values: &mut BTreeMap<u64, u32>, offset: u64, value: u32) -> bool {
    let old = |values: &BTreeMap<u64, u32>, offset| values.get(&offset).copied().unwrap_or(0);
    match offset {
        0x1104 => drop(values.insert(0x1140, value & 1)),
        0x110c => {
            let control = old(values, 0x1104) & !value;
            values.insert(0x1104, control);
            values.insert(0x1140, old(values, 0x1140) & !1 | control & 1);
            return false;
        }
        0x6024 => drop(values.insert(0x6020, old(values, 0x6020) | value)),
        0x6028 => drop(values.insert(0x6020, old(values, 0x6020) & !value)),
        _ => return true,
    }
    true
}

/// Creates a device whose XDMA core has three host-to-card and two card-to-host channels.
fn device() -> Arc<Mock> {
    let mock = Mock::new(0x1_0000, Identity::default(), core);
    for (offset, value) in [
        (0x0000, 0x1fc0_8006),
        (0x0100, 0x1fc0_8106),
        (0x0200, 0x1fc0_8206),
        (0x1000, 0x1fc1_8006),
        (0x1100, 0x1fc1_8106),
        (0x114c, 0x0140_4040),
        (0x2000, 0x1fc2_0006),
        (0x3000, 0x1fc3_0006),
    ] {
        mock.registers.set(offset, value);
    }
    mock
}

fn open(mock: &Arc<Mock>, keys: &str) -> Result<Driven<Xdma>, EngineError> {
    mock.open(&format!("channel = 1\n{keys}"), Path::new(""))
}

fn slots(count: u64) -> Slots {
    Slots {
        addresses: (0..count).map(|i| 0x7_0000_0000 + i * 0x1000).collect(),
        bytes: 4096,
        first: 0,
        doorbell: None,
        placement: Placement::Host,
    }
}

fn armed(mock: &Arc<Mock>, keys: &str, slots: &Slots) -> Driven<Xdma> {
    let mut engine = open(mock, keys).unwrap();
    engine.arm(slots).unwrap();
    mock.registers.writes();
    engine
}

/// Acts as the engine: writes the result of a transfer into `slot`.
fn finish(engine: &Xdma, slot: usize, state: u32, length: u32) {
    let ring = engine.ring.as_ref().unwrap();
    let at = (ring.slots() + slot) * 32;
    ring.memory()
        .write64(at, u64::from(state) | u64::from(length) << 32);
}

/// Acts as the engine: writes the count word.
fn count(engine: &Xdma, word: u32) {
    let ring = engine.ring.as_ref().unwrap();
    ring.memory().write32(ring.slots() * 64, word);
}

fn poll(engine: &mut Driven<Xdma>, room: usize) -> Result<(Vec<usize>, u64), EngineError> {
    let mut done = Completions::new(room, FAULTS.len());
    engine.poll(&mut done)?;
    let lengths = done.as_slice().iter().map(|done| done.length).collect();
    Ok((lengths, done.overrun()))
}

#[test]
fn xdma_start_follows_product_guide_order() {
    let mock = device();
    let mut engine = open(&mock, "").unwrap();
    // Opening the engine has probed the credit mode.
    assert_eq!(
        mock.registers.writes(),
        [(0x6024, 1 << 17), (0x6028, 1 << 17)]
    );
    let slots = Slots {
        first: 2,
        ..slots(3)
    };
    engine.arm(&slots).unwrap();
    let base = 0x1000_0000;
    assert_eq!(
        mock.registers.writes(),
        [
            (0x110c, u32::MAX),
            (0x1188, base + 3 * 64),
            (0x118c, 0),
            (0x1190, 0),
            (0x5180, base + 2 * 32),
            (0x5184, 0),
            (0x5188, 0),
            (0x6024, 1 << 17),
            (0x6018, 1 << 17),
            (0x1104, 0x04f8_3e3d),
        ]
    );
    let memory = engine.ring.as_ref().unwrap().memory();
    let words: Vec<u32> = (0..24).map(|i| memory.read32(i * 4)).collect();
    for i in 0..3 {
        let next = base + (i + 1) % 3 * 32;
        let target = 0x1000 * i;
        assert_eq!(
            words[i as usize * 8..][..8],
            [0xad4b_0002, 4096, base + 96 + i * 32, 0, target, 7, next, 0]
        );
    }
    engine.credit(2);
    assert_eq!(mock.registers.writes(), [(0x518c, 2)]);
    engine.quiesce(Duration::ZERO).unwrap();
    assert_eq!(
        mock.registers.writes(),
        [(0x110c, 1), (0x110c, u32::MAX), (0x6028, 1 << 17)]
    );
}

#[test]
fn xdma_writeback_gives_completed_slots() {
    let mock = device();
    let mut engine = armed(
        &mock,
        "",
        &Slots {
            first: 1,
            ..slots(3)
        },
    );
    engine.credit(3);
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    // The result of the second transfer arrives before that of the first, so neither is reported.
    finish(&engine, 2, 0x52b4_0000, 4096);
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    finish(&engine, 1, 0x52b4_0001, 100);
    assert_eq!(poll(&mut engine, 1), Ok((vec![100], 0)), "room for one");
    assert_eq!(poll(&mut engine, 8), Ok((vec![4096], 0)));
    // A result with length 0 may be half written and is not reported at the first poll.
    finish(&engine, 0, 0x52b4_0000, 0);
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    finish(&engine, 0, 0x52b4_0000, 7);
    assert_eq!(poll(&mut engine, 8), Ok((vec![7], 0)));
    // Slot 1 is used again. Its old result was cleared, and without a credit its new result is not read.
    finish(&engine, 1, 0x52b4_0000, 9);
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    engine.credit(1);
    assert_eq!(poll(&mut engine, 8), Ok((vec![9], 0)));
    engine.credit(1);
    finish(&engine, 2, 0x52b4_0000, 11);
    // Transfers that finished before the stop can still be polled.
    engine.quiesce(Duration::ZERO).unwrap();
    assert_eq!(poll(&mut engine, 8), Ok((vec![11], 0)));
    assert_eq!(engine.overwritten(), Ok(0));
}

#[test]
fn xdma_error_bits_are_named() {
    let named = |error| match error {
        Err(EngineError::Faulted { faults, engine, .. }) => {
            assert_eq!(engine, "xdma");
            faults
        }
        other => panic!("{other:?}"),
    };
    let bits = [
        (3, "align"),
        (4, "descriptor-magic"),
        (5, "invalid-length"),
        (9, "read-decode"),
        (10, "read-slave"),
        (11, "read-2"),
        (12, "read-3"),
        (13, "read-4"),
        (19, "descriptor-unsupported"),
        (20, "descriptor-abort"),
        (21, "descriptor-parity"),
        (22, "descriptor-poisoned"),
        (23, "descriptor-unexpected"),
    ];
    for (bit, name) in bits {
        let mock = device();
        let mut engine = armed(&mock, "", &slots(3));
        engine.credit(3);
        // If the count word reports the error, it is detected at the next poll, after earlier transfers were reported.
        mock.registers.set(0x1140, 1 << bit | 1);
        finish(&engine, 0, 0x52b4_0000, 64);
        count(&engine, 1 << 31 | 1);
        assert_eq!(poll(&mut engine, 8), Ok((vec![64], 0)));
        assert_eq!(named(poll(&mut engine, 8)), [name]);
        // If the count word does not report the error, it is detected after a limited number of polls.
        count(&engine, 1);
        assert!(
            (0..POLLS_PER_CHECK).any(|_| poll(&mut engine, 8).is_err()),
            "{name}"
        );
        assert!(FAULTS.contains(&name));
    }
    assert_eq!(bits.len(), ERRORS.len());
    let mock = device();
    let mut engine = armed(&mock, "", &slots(3));
    engine.credit(3);
    count(&engine, 1 << 31);
    assert_eq!(named(poll(&mut engine, 8)), ["write-back-error"]);
    count(&engine, 0);
    mock.registers.set(0x1140, 1 << 9 | 1 << 19);
    let last = (0..POLLS_PER_CHECK)
        .map(|_| poll(&mut engine, 8))
        .find(Result::is_err);
    assert_eq!(
        named(last.unwrap()),
        ["read-decode", "descriptor-unsupported"]
    );
    // A word that is not a valid result, and a length beyond the slot.
    for (state, length) in [(0x52b5_0000, 64), (0x52b4_0000, 4097)] {
        let mut engine = armed(&device(), "", &slots(3));
        engine.credit(3);
        finish(&engine, 0, 0x52b4_0000, 1);
        finish(&engine, 1, state, length);
        assert_eq!(poll(&mut engine, 8), Ok((vec![1], 0)));
        assert_eq!(named(poll(&mut engine, 8)), ["result-damaged"]);
    }
    // A counted transfer without a result, and then with a late result.
    let mut engine = armed(&device(), "", &slots(3));
    engine.credit(3);
    count(&engine, 1);
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    engine.result_timeout = Duration::ZERO;
    assert_eq!(named(poll(&mut engine, 8)), ["result-missing"]);
    finish(&engine, 0, 0x52b4_0000, 1);
    assert_eq!(poll(&mut engine, 8), Ok((vec![1], 0)));
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
}

#[test]
fn xdma_missing_result_after_wrap_is_reported() {
    let mut engine = armed(&device(), "", &slots(3));
    engine.result_timeout = Duration::ZERO;
    // Simulates an engine that has reported almost 2^24 transfers.
    engine.reported = (1 << 24) - 1;
    engine.credited = engine.reported;
    engine.credit(3);
    // The count may be lower than the number of results.
    count(&engine, MASK - 1);
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    count(&engine, MASK);
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    for (word, lacking) in [(0, 0), (1, 1)] {
        count(&engine, word);
        let error = poll(&mut engine, 8).unwrap_err().to_string();
        assert!(error.contains("result-missing"), "{error}");
        finish(&engine, lacking, 0x52b4_0000, 64);
        assert_eq!(poll(&mut engine, 8), Ok((vec![64], 0)));
        assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    }
}

#[test]
fn xdma_packet_longer_than_slot_is_reported() {
    let mut engine = armed(&device(), "", &slots(6));
    let cut = |engine: &mut Driven<Xdma>| {
        let mut done = Completions::new(8, FAULTS.len());
        engine.poll(&mut done).unwrap();
        (done.as_slice().len(), done.faults()[CUT])
    };
    engine.credit(6);
    // Without an end of packet, this may be a stream without packets, so no fault is reported.
    finish(&engine, 0, 0x52b4_0000, 4096);
    finish(&engine, 1, 0x52b4_0000, 4096);
    assert_eq!(cut(&mut engine), (2, 0));
    finish(&engine, 2, 0x52b4_0001, 64);
    assert_eq!(cut(&mut engine), (1, 1));
    finish(&engine, 3, 0x52b4_0001, 4096);
    assert_eq!(
        cut(&mut engine),
        (1, 0),
        "a packet that exactly fills its slot is complete"
    );
    finish(&engine, 4, 0x52b4_0000, 4096);
    finish(&engine, 5, 0x52b4_0001, 1);
    assert_eq!(cut(&mut engine), (2, 1));
}

#[test]
fn xdma_empty_packet_is_fault_without_stall() {
    let mut engine = armed(&device(), "", &slots(3));
    engine.credit(3);
    finish(&engine, 0, 0x52b4_0001, 0);
    finish(&engine, 1, 0x52b4_0001, 5);
    let mut done = Completions::new(8, FAULTS.len());
    engine.poll(&mut done).unwrap();
    assert_eq!(done.as_slice().len(), 0, "the result may be half written");
    engine.poll(&mut done).unwrap();
    let reported = done
        .as_slice()
        .iter()
        .map(|done| (done.length, done.is_bad));
    assert_eq!(reported.collect::<Vec<_>>(), [(0, true), (5, false)]);
}

#[test]
fn xdma_removed_idle_device_is_detected() {
    let mock = device();
    let mut engine = armed(&mock, "", &slots(3));
    mock.registers.remove();
    engine.idle.demand();
    assert!(poll(&mut engine, 8).is_err());
}

/// Simulates a card whose channel was reset or stopped by another program: no error bit is set.
#[test]
fn xdma_stopped_channel_is_fault() {
    for keys in ["", "credits = false"] {
        let mock = device();
        let mut engine = armed(&mock, keys, &slots(3));
        engine.credit(3);
        let check = |engine: &mut Driven<Xdma>| {
            engine.idle.demand();
            poll(engine, 8)
        };
        assert_eq!(check(&mut engine), Ok((vec![], 0)));
        mock.registers.set(0x1104, 0);
        mock.registers.set(0x1140, 0);
        assert_eq!(
            poll(&mut engine, 8),
            Ok((vec![], 0)),
            "no check at each poll"
        );
        let error = check(&mut engine).unwrap_err();
        assert!(error.to_string().contains("stopped"), "{error}");
        // The restart starts the channel again.
        engine.quiesce(Duration::ZERO).unwrap();
        engine.arm(&slots(3)).unwrap();
        assert_eq!(check(&mut engine), Ok((vec![], 0)));
    }
}

#[test]
fn xdma_running_channel_is_stopped_before_mode_change() {
    let mock = device();
    mock.registers.set(0x1104, 1);
    mock.registers.set(0x1140, 1);
    mock.registers.set(0x6020, 1 << 17);
    open(&mock, "").unwrap();
    // The credit mode is unchanged.
    assert_eq!(mock.registers.writes(), [(0x110c, 1), (0x6024, 1 << 17)]);
}

#[test]
fn xdma_removed_device_is_reported() {
    let mock = device();
    let mut engine = armed(&mock, "", &slots(3));
    let gone = Err(EngineError::Gone {
        device: "mock".into(),
    });
    mock.registers.remove();
    let seen = (0..POLLS_PER_CHECK)
        .map(|_| poll(&mut engine, 8))
        .find(Result::is_err);
    assert_eq!(seen, Some(gone));
    assert_eq!(engine.quiesce(Duration::ZERO), Ok(()));
    let refused = engine.arm(&slots(3)).unwrap_err();
    assert!(matches!(refused, EngineError::Gone { .. }));
}

#[test]
fn xdma_quiesce_timeout_disables_bus_mastering() {
    let mock = device();
    let engine = open(&mock, "").unwrap().engine;
    let region = Region::host(3 * 4096, HostOptions::default()).unwrap();
    let map = DmaMap::new(mock.clone(), region).unwrap();
    let layout = SlotLayout {
        slots: 3,
        stride: 4096,
        bytes: 4096,
    };
    let armed = Stopped::new(engine, map).start(layout, 0, None).unwrap();
    mock.registers.hold(0x1140, 1);
    let idle = armed.stop(Duration::ZERO).unwrap();
    assert!(idle.quiesce_timeout().is_some());
    assert_eq!(mock.disable_and_reset.load(Ordering::SeqCst), 1);
    drop(idle);
    assert_eq!(
        mock.disable_and_reset.load(Ordering::SeqCst),
        1,
        "the device must be reset only once"
    );
    assert_eq!(mock.mapped.load(Ordering::SeqCst), 0);
    // An engine that is running already is not armed, and its credit mode is not changed.
    let mut engine = open(&device(), "").unwrap();
    mock.registers.writes();
    let error = open(&mock, "").err().unwrap().to_string();
    assert!(error.contains("reset the card"), "{error}");
    assert_eq!(mock.registers.writes(), [(0x110c, 1)]);
    let registers: Arc<dyn Registers> = mock.registers.clone();
    engine.channel = Window::new(&registers, 0x1100);
    let error = engine.arm(&slots(3)).unwrap_err().to_string();
    assert!(error.contains("reset the card"), "{error}");
}

#[test]
fn xdma_count_is_written_to_doorbell() {
    let mock = device();
    let mut engine = open(&mock, "").unwrap();
    assert_eq!(
        (
            engine.caps().doorbell_bits,
            engine.caps().supports_backpressure
        ),
        (24, true)
    );
    engine
        .arm(&Slots {
            doorbell: Some(0x12_3456_7890),
            ..slots(3)
        })
        .unwrap();
    let writes = mock.registers.writes();
    assert!(writes.contains(&(0x1188, 0x3456_7890)) && writes.contains(&(0x118c, 0x12)));
    engine.credit(1);
    finish(&engine, 0, 0x52b4_0001, 5);
    assert_eq!(poll(&mut engine, 8), Ok((vec![5], 0)));
    // Errors are detected without the count in the ring.
    mock.registers.set(0x1140, 1 << 4);
    assert!((0..POLLS_PER_CHECK).any(|_| poll(&mut engine, 8).is_err()));
}

#[test]
fn xdma_without_credits_is_free_running() {
    let mock = device();
    let mut engine = open(&mock, "credits = false").unwrap();
    let caps = engine.caps();
    assert_eq!((caps.supports_backpressure, caps.doorbell_bits), (false, 0));
    assert!(
        engine.arm(&slots(2)).is_err(),
        "with two slots, every frame may be overwritten"
    );
    engine.arm(&slots(8)).unwrap();
    let writes = mock.registers.writes();
    assert!(writes.contains(&(0x6028, 1 << 17)));
    engine.credit(3);
    assert_eq!(mock.registers.writes(), [], "there are none");
    for slot in 0..8 {
        finish(&engine, slot, 0x52b4_0000, 4096);
    }
    count(&engine, 3);
    assert_eq!(poll(&mut engine, 8), Ok((vec![4096; 3], 0)));
    // 15 transfers are finished. Transfers 15 and 16 may be overwriting 7 and 8. So 3 to 8 are lost, and 9 to 14 are
    // valid.
    count(&engine, 15);
    assert_eq!(poll(&mut engine, 2), Ok((vec![4096; 2], 6)));
    mock.registers.set(0x1148, 17);
    assert_eq!(engine.overwritten(), Ok(11));
    assert_eq!(poll(&mut engine, 8), Ok((vec![4096; 4], 0)));
    // A count of all ones does not mean a removed device, but a count that went back is a fault.
    mock.registers.set(0x1148, u32::MAX);
    let back = engine.overwritten().unwrap_err();
    assert!(back.to_string().contains("count-went-back"), "{back}");
    count(&engine, 14);
    let back = poll(&mut engine, 8).unwrap_err();
    assert!(back.to_string().contains("count-went-back"), "{back}");
    count(&engine, 15);
    assert_eq!(poll(&mut engine, 8), Ok((vec![], 0)));
    mock.registers.remove();
    assert!(matches!(
        engine.overwritten(),
        Err(EngineError::Gone { .. })
    ));
}

#[test]
fn xdma_interrupts_are_per_channel() {
    let mock = device();
    mock.registers.set(0x20a4, 0x1f1f_1f1f);
    let mut engine = open(&mock, "completion = \"interrupt\"").unwrap();
    engine.arm(&slots(3)).unwrap();
    let writes = mock.registers.writes();
    // Three host-to-card channels come first, so the channel has bit 4. Its vector is 0.
    for write in [
        (0x1190, 0x00f8_3e3c),
        (0x20a4, 0x1f1f_1f00),
        (0x2014, 1 << 4),
    ] {
        assert!(writes.contains(&write), "{write:x?} of {writes:x?}");
    }
    mock.interrupt(0);
    mock.registers.set(0x1144, 1 << 2 | 1 << 10);
    assert_eq!(engine.wait(Duration::MAX), Ok(true));
    assert_eq!(
        mock.registers.writes(),
        [(0x1198, 0x00f8_3e3c), (0x1194, 0x00f8_3e3c)]
    );
    // An error whose status bit was cleared by a read must still be reported.
    assert!(poll(&mut engine, 8).is_err());
    engine.quiesce(Duration::ZERO).unwrap();
    let writes = mock.registers.writes();
    assert!(writes.contains(&(0x1198, 0x00f8_3e3c)) && writes.contains(&(0x2018, 1 << 4)));
}

#[test]
fn xdma_foreign_device_is_rejected_with_register_value() {
    let reported = |mock: &Arc<Mock>, keys: &str| match open(mock, keys) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("opened"),
    };
    let mock = device();
    mock.registers.set(0x2000, 0xdead_beef);
    let error = reported(&mock, "");
    assert_contains!(error => "0xdeadbeef", "0x1fc2");
    let mock = device();
    mock.registers.set(0x1100, 0x1fc1_0106);
    assert!(reported(&mock, "").contains("AXI Stream"));
    mock.registers.set(0x1100, 0);
    assert!(reported(&mock, "").contains("fewer channels"));
    let mock = Mock::new(0x1_0000, Identity::default(), |_, offset, _| {
        !(0x6000..0x7000).contains(&offset)
    });
    for (offset, value) in [
        (0x1100, 0x1fc1_8106),
        (0x2000, 0x1fc2_0006),
        (0x3000, 0x1fc3_0006),
    ] {
        mock.registers.set(offset, value);
    }
    let error = reported(&mock, "");
    assert!(error.contains("credits = false"), "{error}");
    let engine = open(&mock, "credits = false").unwrap();
    assert_eq!(engine.caps().alignment, 1);
    // The slot addresses exceed the address width of the core.
    let mock = device();
    mock.registers.set(0x114c, 0x0101_0020);
    let error = open(&mock, "").unwrap().arm(&slots(3)).unwrap_err();
    assert!(error.to_string().contains("32-bit"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Without credits, every transfer must be reported or skipped exactly once for every sequence of counts.
    #[test]
    fn xdma_count_loses_no_transfer(
        count_slots in 3_u64..40, steps in proptest::collection::vec((0_u64..1 << 23, 1_usize..50), 1..60),
    ) {
        let mut engine = armed(&device(), "credits = false", &slots(count_slots));
        for slot in 0..usize::try_from(count_slots).unwrap() {
            finish(&engine, slot, 0x52b4_0000, 4096);
        }
        let (mut truth, mut reported) = (0_u64, 0_u64);
        for (step, room) in steps {
            // Mixes small steps with steps close to half the range of the count.
            truth += if room % 2 == 0 { step } else { step % 50 };
            count(&engine, u32::try_from(truth % (1 << 24)).unwrap());
            let (done, overrun) = poll(&mut engine, room).unwrap();
            // Transfers that may be overwritten by now must not be reported.
            let first = reported + overrun;
            prop_assert!(first >= (truth + AHEAD).saturating_sub(count_slots) || done.is_empty());
            reported = first + done.len() as u64;
            prop_assert!(reported <= truth + AHEAD);
            prop_assert_eq!(reported, engine.reported);
            prop_assert!(done.len() == room || reported >= truth);
        }
    }
}
