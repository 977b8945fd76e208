//! Checks that the source `udp` allocates no memory after its start, whatever packets arrive.

use crate::spec;
use daq_core::source::Polled;
use daq_drivers::packet::{Endian, Field, Format, Raw};
use daq_drivers::sys::send::Sender;
use daq_drivers::udp::ENTRY;
use daq_testkit::allocations::{ObservedAllocator, count_on_thread, of_thread};
use daq_testkit::loopback::{self, free_address};
use daq_testkit::source::new_fixture;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: ObservedAllocator = ObservedAllocator::new(count_on_thread);

#[test]
fn udp_reception_allocates_nothing() {
    for payload in [1456, 8956] {
        let port = free_address();
        let text = format!(
            "[source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"{port}\"\n[source.adc.format]\nkind = \"raw\"\n\
             header = 16\npayload = {payload}\nsequence = {{ offset = 0, bytes = 8 }}\n"
        );
        let spec = spec(&ENTRY, &text).unwrap();
        let mut fixture = new_fixture(&*spec, payload * 64, 64).unwrap();
        let format = Format::Raw(Raw::new(
            16,
            payload,
            0,
            Field::new(0, 8, Endian::Big, 0, 64),
            1,
        ));
        let (filler, window, reader) = (
            &mut fixture.fillers[0],
            &mut fixture.windows[0],
            &mut fixture.reader,
        );
        filler.start().unwrap();
        loopback::stay();
        let mut sender = Sender::open(port, true, None).unwrap();
        let mut allocated = 0;
        for round in 0..60_u64 {
            let mut bytes = Vec::new();
            for i in 0..40 {
                // Gaps, jumps, backward steps and repetitions between packets in order.
                let sequence = match (round % 10, i) {
                    (3, 20..) => round * 40 + i + 5,
                    (5, 10..30) => round * 40 + 39 - i,
                    (7, _) => round * 1_000_000 + i,
                    (8, _) => i,
                    _ => round * 40 + i,
                };
                format.build(sequence, 0, None, &vec![0; payload], &mut bytes);
            }
            sender.send_packets(&bytes, payload + 16).unwrap();
            sender.send(&[1, 2, 3]).unwrap();
            sender.send(&[]).unwrap();
            loopback::arrived();
            let before = of_thread();
            while filler.fill(window, Duration::from_millis(5)).unwrap() == Polled::Busy {
                window.tick(Instant::now());
                drop(reader.poll(16));
            }
            allocated += of_thread() - before;
        }
        let report = fixture.report();
        assert!(
            report.delivered > 1000 && report.epochs > 3 && report.rejected + report.control > 100,
            "{report:?}"
        );
        assert_eq!(allocated, 0, "{payload} bytes: {report:?}");
    }
}
