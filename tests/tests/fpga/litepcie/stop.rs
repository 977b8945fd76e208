//! Disables the writer at every possible cycle, and reads its counter before its table is reset.

use crate::litepcie::gateware::{Names, built};
use crate::litepcie::status;
use crate::litepcie::sys::{Core, Event};
use daq_testkit::skip;

/// Number of slots in the descriptor table.
const SLOTS: u32 = 3;
/// Bytes per slot, which is two packets.
const SLOT: u32 = 512;
/// Payload bytes per packet.
const PACKET: u32 = 256;
/// Start address of the slots.
const BASE: u32 = 0x1234_0000;
/// Number of cycles at which the writer is disabled. They cover some transfers and more than one loop.
const CYCLES: u32 = 400;
/// Value of `enable`: disabled and idle.
const IDLE: u32 = 2;
/// Number of cycles after which the core is idle, and maximum number of cycles until it becomes idle.
const QUIET: (u32, u32) = (64, 100_000);

struct Writer {
    core: Core,
    names: Names,
    /// Number of packets since the start.
    packets: u32,
}

impl Writer {
    fn at(&self, name: &str) -> u32 {
        let offset = self.names.register(&format!("pcie_dma0_writer_{name}"));
        u32::try_from(offset).unwrap()
    }

    /// Writes a register. The write arrives some cycles later.
    fn send(&mut self, name: &str, value: u32) {
        let offset = self.at(name);
        self.core.write(offset, value);
    }

    fn set(&mut self, name: &str, value: u32) {
        self.send(name, value);
        assert!(self.core.settle(QUIET.0, QUIET.1));
    }

    fn read(&mut self, name: &str) -> u32 {
        let offset = self.at(name);
        self.core.read(offset).unwrap()
    }

    fn start(&mut self) {
        self.set("enable", 0);
        self.set("table_reset", 1);
        self.set("table_loop_prog_n", 0);
        let low = self.at("table_value") + 4;
        for slot in 0..SLOTS {
            self.set("table_value", SLOT);
            self.core.write(low, BASE + slot * SLOT);
            self.set("table_we", 0);
        }
        self.set("table_loop_prog_n", 1);
        self.set("enable", 1);
        self.packets = 0;
    }

    /// Processes the emitted packets. Each packet must be complete and in order.
    fn take(&mut self) {
        while let Some(event) = self.core.next() {
            let place = self.packets * PACKET % (SLOTS * SLOT);
            let words = u64::from(self.packets * PACKET / 8);
            let expected: Vec<u8> = (words..words + u64::from(PACKET / 8))
                .flat_map(u64::to_le_bytes)
                .collect();
            let Event::Write { address, data, .. } = event else {
                panic!("{event:?}");
            };
            assert_eq!(address, u64::from(BASE + place));
            assert!(data == expected, "packet {}", self.packets);
            self.packets += 1;
        }
    }
}

/// When it is disabled, the writer completes only the current packet and then reports that it is idle. Then
/// `loop_status` must count all slots whose last packet was sent, at any cycle, and must not change until the table is
/// reset.
#[test]
fn gateware_loop_count_after_disable_is_exact() {
    let built = match built() {
        Ok(built) => built,
        Err(why) => skip!("{why}"),
    };
    let mut writer = Writer {
        core: Core::load(&built.join("litepcie.so")),
        names: Names::parse(&std::fs::read_to_string(built.join("csr.csv")).unwrap()),
        packets: 0,
    };
    let (mut busy, mut half_done, mut ends_after) = (0, 0, 0);
    for cycles in 0..CYCLES {
        writer.start();
        writer.core.run(u32::MAX, cycles);
        writer.take();
        let before = writer.packets;
        // The read follows the write immediately.
        writer.send("enable", 0);
        let mut reads = 0;
        while writer.read("enable") != IDLE {
            reads += 1;
            assert!(reads < 100, "the writer did not become idle");
        }
        let reported = writer.read("table_loop_status");
        writer.take();
        let finished = u64::from(writer.packets * PACKET / SLOT);
        assert_eq!(reported, status(finished, SLOTS), "off at {cycles}");
        busy += u32::from(reads > 0);
        half_done += u32::from(!(writer.packets * PACKET).is_multiple_of(SLOT));
        ends_after += u32::from(writer.packets > before);

        // Nothing may change any more, although the stream is open.
        let packets = writer.packets;
        writer.core.run(u32::MAX, 500);
        writer.take();
        assert_eq!(writer.packets, packets, "off at {cycles}");
        assert_eq!(writer.read("table_loop_status"), reported);
        assert_eq!(writer.read("table_level"), SLOTS);
        assert_eq!(writer.read("enable"), IDLE);
        writer.set("table_loop_prog_n", 0);
        assert_eq!(writer.read("table_loop_status"), reported);
        writer.set("table_reset", 1);
        assert_eq!(writer.read("table_loop_status"), 0);
    }
    assert!(
        busy > 0 && half_done > 0 && ends_after > 0,
        "the test must stop the writer while it is busy ({busy} times), inside a slot ({half_done} times) and inside a packet ({ends_after} times)"
    );
}
