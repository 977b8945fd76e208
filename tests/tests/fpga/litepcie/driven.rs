//! Tests the engine `litepcie` with the real gateware, over the vfio-user protocol.

use crate::litepcie::gateware::{Gateware, built};
use crate::litepcie::served::Served;
use daq_core::dma::{Completions, DmaMap, Engine, SlotLayout, Stopped};
use daq_core::region::{HostOptions, Region};
use daq_drivers::fpga::FpgaSource;
use daq_drivers::fpga::engines::litepcie::Writer;
use daq_drivers::fpga::transports::{Open, open};
use daq_testkit::{TIMEOUT, skip, wait_for};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes per slot. The same number of bytes after each slot must not change.
const SLOT: u64 = 2048;
/// Number of ring slots.
const SLOTS: u64 = 8;
/// Number of bytes of an unfinished transfer.
const HALF: u64 = SLOT / 2;
/// Index of the slot that is filled first.
const FIRST: u64 = 3;

/// Starts and stops several times, with some loops each. When the engine reports a transfer, all its data must be in
/// its slot.
#[test]
fn engine_on_gateware_fills_slots_in_order() {
    let directory = tempfile::tempdir().unwrap();
    for completion in ["poll", "interrupt"] {
        let card = match Gateware::new() {
            Ok(card) => card,
            Err(why) => skip!("{why}"),
        };
        card.feed().store(0, Ordering::Relaxed);
        let served = Served::new(card, &directory.path().join("card.sock"));
        let csr = built().unwrap().join("csr.csv");
        let keys = format!(
            "device = \"vfio-user:card.sock\"\nengine = \"litepcie\"\ncsr = {csr:?}\n\
             completion = {completion:?}"
        );
        let registry = daq_pipelines::registry();
        let source = FpgaSource::<Writer>::from_text(&keys, &registry).unwrap();
        let way = Open {
            directory: directory.path(),
            registry: &registry,
            emulated_options: None,
        };
        let device = open(&source.config.device, &way).unwrap();
        let options = HostOptions {
            shared: true,
            ..HostOptions::default()
        };
        let bytes = usize::try_from(2 * SLOT * SLOTS).unwrap();
        let region = Region::host(bytes, options).unwrap();
        let file: File = region.file().unwrap().try_clone_to_owned().unwrap().into();
        let map = DmaMap::new(Arc::clone(&device).as_dma(), region).unwrap();
        let opened = source.open(device.clone(), directory.path()).unwrap();
        let engine: Box<dyn Engine> = Box::new(opened);
        let faults = engine.info().faults.len();
        let mut idle = Stopped::new(engine, map);
        let layout = SlotLayout {
            slots: usize::try_from(SLOTS).unwrap(),
            stride: usize::try_from(2 * SLOT).unwrap(),
            bytes: usize::try_from(SLOT).unwrap(),
        };
        let first = usize::try_from(FIRST).unwrap();
        for _ in 0..10 {
            file.write_all_at(&vec![0xa5; bytes], 0).unwrap();
            let mut completions = Completions::new(64, faults);
            let mut armed = idle.start(layout, first, None).unwrap();
            let (mut fed, mut seen) = (0, 0);
            while seen < 4 * SLOTS {
                // A transfer is reported when the next one is done, so one more is needed. The device must not
                // overwrite slots that are being checked.
                let more = 1 + seen + SLOTS / 2 - fed;
                served.feed(more * SLOT / 8);
                fed += more;
                wait_for("the next transfers", || {
                    if completion == "interrupt" && served.left() > 0 {
                        armed.wait(Duration::from_millis(100)).unwrap();
                    }
                    completions.clear(64);
                    armed.poll(&mut completions).unwrap();
                    assert_eq!(completions.overrun(), 0);
                    assert!(completions.faults().iter().all(|count| *count == 0));
                    for done in completions.as_slice() {
                        assert_eq!((done.length as u64, done.is_bad), (SLOT, false));
                        let mut found = vec![0; 2 * done.length];
                        let place = 2 * SLOT * ((FIRST + seen) % SLOTS);
                        file.read_exact_at(&mut found, place).unwrap();
                        let words = seen * SLOT / 8..(seen + 1) * SLOT / 8;
                        let expected: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
                        assert!(found[..done.length] == expected, "transfer {seen}");
                        assert!(found[done.length..].iter().all(|byte| *byte == 0xa5));
                        seen += 1;
                    }
                    (seen + 1 >= fed).then_some(())
                });
                assert!(
                    armed.overwritten().unwrap() <= seen,
                    "a transfer was overwritten before it was checked"
                );
            }
            // Transfers that were not polled before the stop must be reported after the stop without loss. These are
            // complete transfers and the beginning of an incomplete transfer.
            let unseen = SLOTS / 2;
            served.feed(unseen * SLOT / 8 + HALF / 8);
            wait_for("the card to accept all data", || {
                (served.left() == 0).then_some(())
            });
            idle = armed.stop(TIMEOUT).unwrap();
            assert_eq!(idle.quiesce_timeout(), None);
            completions.clear(64);
            idle.poll(&mut completions).unwrap();
            let reported = completions.as_slice().len() as u64;
            assert_eq!((seen + reported, completions.overrun()), (fed + unseen, 0));
            assert_eq!(idle.overwritten().unwrap(), fed + unseen + 1 - SLOTS);
            for transfer in seen..fed + unseen {
                let mut found = vec![0; usize::try_from(SLOT).unwrap()];
                let place = 2 * SLOT * ((FIRST + transfer) % SLOTS);
                file.read_exact_at(&mut found, place).unwrap();
                let words = transfer * SLOT / 8..(transfer + 1) * SLOT / 8;
                let expected: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
                assert!(
                    found == expected,
                    "transfer {transfer}, which the stop reported, has wrong bytes"
                );
            }
            // After the stop nothing may be written, even if the sensor continues to send.
            file.write_all_at(&vec![0x5a; bytes], 0).unwrap();
            served.feed(4 * SLOT);
            // The device runs one step between two register accesses.
            let registers = device.registers(0).unwrap();
            for _ in 0..1000 {
                registers.read(0);
            }
            let mut after = vec![0; bytes];
            file.read_exact_at(&mut after, 0).unwrap();
            assert!(after.iter().all(|byte| *byte == 0x5a));
            // A disabled writer does not read data, so data that was fed would remain for the next start. Remove that
            // data.
            served.drain();
        }
    }
}
