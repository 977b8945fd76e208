//! Tests of emulated devices through both transports: in this process and over a socket.

use crate::bench::{Bench, until};
use daq_core::dma::{DmaError, DmaMap};
use daq_core::region::{HostOptions, Region};
use daq_drivers::fpga::device::{Device, GONE};
use daq_drivers::fpga::transports::emulated::EmulatedOptions;
use daq_drivers::fpga::transports::vfio_user;
use daq_emulators::pattern::{Pattern, verify};
use daq_emulators::vfio_user::{Server, ServerError};
use daq_emulators::{build, in_process};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const SLOT: usize = 16 << 10;
const SLOTS: usize = 8;

/// A vfio-user server on a thread of this process.
struct Served {
    dir: tempfile::TempDir,
    stop: UnixStream,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Served {
    fn new(options: &EmulatedOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (stop, signal) = UnixStream::pair().unwrap();
        let server = Server::bind(&dir.path().join("card.sock")).unwrap();
        let card = build("xdma", options).unwrap();
        let thread = std::thread::spawn(move || server.serve(card, signal.as_fd(), false));
        Self {
            dir,
            stop,
            thread: Some(thread),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("card.sock")
    }

    fn open(&self) -> Arc<dyn Device> {
        vfio_user::open(&self.path()).unwrap()
    }

    fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.write_all(&[0]).unwrap();
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

fn options(fault: Option<&str>) -> EmulatedOptions {
    EmulatedOptions {
        faults: fault
            .map(|text| text.parse().unwrap())
            .into_iter()
            .collect(),
        ..EmulatedOptions::default()
    }
}

/// Calls `check` once per transport, each time with a new device.
fn each(options: &EmulatedOptions, check: impl Fn(Arc<dyn Device>)) {
    check(in_process::open(build("xdma", options).unwrap()).unwrap());
    let served = Served::new(options);
    check(served.open());
}

#[test]
fn transfers_deliver_every_byte() {
    each(&options(None), |device| {
        let identity = device.identity();
        assert_eq!((identity.vendor, identity.class), (0x10ee, 0x05_80_00));
        let bench = Bench::new(device, SLOTS, SLOT);
        let map = bench.map.as_ref().unwrap();
        assert_ne!(map.address(), bench.region.address().addr().get() as u64);
        bench.start();
        let mut at = 0;
        for round in 1..=20_u32 {
            bench.credit(8);
            bench.wait_count(8 * round);
            for slot in 0..SLOTS {
                assert_eq!(bench.length(slot), SLOT);
                assert_eq!(
                    verify(Pattern::Counter, 4096, at, &bench.payload(slot)),
                    None
                );
                at += SLOT as u64;
            }
        }
        assert_eq!(bench.registers.read(0x1048), 160);
        bench.stop();
    });
}

/// A busy device must also detect that it is being closed.
#[test]
fn busy_device_can_be_dropped() {
    let device = in_process::open(build("litepcie", &options(None)).unwrap()).unwrap();
    let registers = device.registers(0).unwrap();
    // A ring with one slot in unmapped memory, in loop mode.
    for (offset, value) in [
        (0x3804, 4096 | 1 << 24 | 1 << 25),
        (0x3808, 0x1_0000),
        (0x380c, 0),
        (0x3810, 1),
        (0x3800, 1),
    ] {
        registers.write(offset, value);
    }
    until("a round", || registers.read(0x3814) >> 16 > 0);
    drop(registers);
    drop(device);
}

/// A client that programs the DMA of a device can write to the client's own memory.
#[test]
fn socket_in_use_rejects_second_client() {
    use std::os::unix::fs::PermissionsExt;
    let served = Served::new(&options(None));
    let mode = std::fs::metadata(served.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn interrupts_are_delivered() {
    each(&options(None), |device| {
        let interrupts = device.interrupts(32).unwrap();
        let bench = Bench::new(device.clone(), SLOTS, SLOT);
        bench.registers.write(0x20a0, 21);
        bench.registers.write(0x2014, 1);
        bench.registers.write(0x1094, 1 << 2);
        bench.start();
        assert!(!interrupts[21].wait(Duration::ZERO));
        for _ in 0..10 {
            bench.credit(1);
            until("an interrupt", || {
                interrupts[21].wait(Duration::from_secs(1))
            });
            assert_eq!(bench.registers.read(0x1044) & 4, 4);
        }
        assert!(!interrupts[0].wait(Duration::ZERO));
        let error = device.interrupts(33).unwrap_err().to_string();
        assert!(error.contains("33") && error.contains("32"), "{error}");
        bench.stop();
    });
}

#[test]
fn unmapped_memory_is_never_written() {
    each(&options(None), |device| {
        let mut bench = Bench::new(device, SLOTS, SLOT);
        bench.start();
        bench.credit(1000);
        bench.wait_count(10);
        // The channel continues to run and to write completions.
        drop(bench.map.take());
        bench.clear();
        let count = bench.count();
        bench.credit(20);
        bench.wait_count(count + 20);
        assert!(bench.is_clear());
        bench.stop();
    });
}

#[test]
fn device_with_bus_mastering_off_is_quiet_and_recovers() {
    each(&options(None), |device| {
        let bench = Bench::new(device.clone(), SLOTS, SLOT);
        bench.start();
        bench.credit(1000);
        bench.wait_count(5);
        device.clone().as_dma().disable_and_reset().unwrap();
        bench.clear();
        // The register has its value after power-on.
        assert_eq!(bench.registers.read(0x1004), 0);
        bench.start();
        bench.credit(3);
        until("an error", || bench.registers.read(0x1040) & 1 == 0);
        assert!(bench.is_clear());
        device.reset().unwrap();
        bench.start();
        bench.credit(3);
        bench.wait_count(3);
        assert_eq!(verify(Pattern::Counter, 4096, 0, &bench.payload(0)), None);
        bench.stop();
    });
}

#[test]
fn stuck_engine_is_recovered_by_reset() {
    each(&options(Some("stuck@3")), |device| {
        let bench = Bench::new(device.clone(), SLOTS, SLOT);
        bench.start();
        bench.credit(8);
        bench.wait_count(3);
        bench.registers.write(0x100c, 1);
        for _ in 0..50 {
            assert_eq!(bench.registers.read(0x1040) & 1, 1);
        }
        device.clone().as_dma().disable_and_reset().unwrap();
        assert_eq!(bench.registers.read(0x1040), 0);
    });
}

#[test]
fn removed_device_reads_all_ones() {
    each(&options(Some("remove@5")), |device| {
        let bench = Bench::new(device.clone(), SLOTS, SLOT);
        bench.start();
        bench.credit(8);
        until("the removal", || bench.registers.read(0x1000) == GONE);
        assert_eq!(bench.count(), 5);
        bench.registers.write(0x1004, 0);
        assert_eq!(bench.registers.read(0x1004), GONE);
        device.clone().as_dma().disable_and_reset().unwrap();
        assert_eq!(bench.registers.read(0x2000), GONE);
    });
}

#[test]
fn hundred_restarts_lose_nothing() {
    each(&options(None), |device| {
        let bench = Bench::new(device, SLOTS, SLOT);
        let mut at = 0;
        for round in 0..100 {
            bench.start();
            let credits = 1 + round % 8;
            bench.credit(credits);
            bench.wait_count(credits);
            bench.stop();
            for slot in 0..credits as usize {
                let payload = bench.payload(slot);
                assert_eq!(
                    verify(Pattern::Counter, 4096, at, &payload),
                    None,
                    "{round}"
                );
                at += SLOT as u64;
            }
        }
    });
}

#[test]
fn missing_socket_is_named() {
    each(&options(None), |device| {
        for bar in [3, 5, 6] {
            let error = device.registers(bar).err().unwrap().to_string();
            assert!(error.contains(&format!("has no BAR {bar}")), "{error}");
        }
        assert_eq!(device.registers(0).unwrap().read(0), 0x3151_4144);
    });
}

#[test]
fn dma_memory_without_file_is_rejected() {
    let served = Served::new(&options(None));
    let device = served.open();
    let private = Region::host(4096, HostOptions::default()).unwrap();
    let error = DmaMap::new(device.as_dma(), private).unwrap_err();
    assert!(matches!(error, DmaError::Unreachable { .. }));
    assert!(error.to_string().contains("shared"), "{error}");
}

#[test]
fn each_client_gets_reset_device() {
    let served = Served::new(&options(None));
    let first = Bench::new(served.open(), SLOTS, SLOT);
    first.start();
    first.credit(1000);
    first.wait_count(3);
    // The client disconnects without a message while the channel is running.
    drop(first);
    for _ in 0..3 {
        let bench = Bench::new(served.open(), SLOTS, SLOT);
        assert_eq!(bench.registers.read(0x1004), 0);
        bench.start();
        bench.credit(2);
        bench.wait_count(2);
        assert_eq!(verify(Pattern::Counter, 4096, 0, &bench.payload(0)), None);
        bench.stop();
    }
}

#[test]
fn server_exit_is_reported_as_removed_device() {
    let mut served = Served::new(&options(None));
    let bench = Bench::new(served.open(), SLOTS, SLOT);
    bench.start();
    bench.credit(8);
    bench.wait_count(8);
    served.stop();
    assert_eq!(bench.registers.read(0x1000), GONE);
    bench.credit(1);
    let region = bench.region.clone();
    let error = DmaMap::new(bench.device.clone().as_dma(), region).unwrap_err();
    assert!(matches!(error, DmaError::Gone { .. }), "{error}");
    bench.device.clone().as_dma().disable_and_reset().unwrap();
    assert!(bench.device.reset().is_err());
    let error = vfio_user::open(&served.path()).err().unwrap().to_string();
    assert!(error.contains("daq emulate"), "{error}");
}

#[test]
fn socket_is_replaced_only_if_server_is_dead() {
    let served = Served::new(&options(None));
    let live = Server::bind(&served.path());
    assert!(matches!(live, Err(ServerError::Live(_))), "{live:?}");
    // The connection attempt of `Server::bind` must not count as a client: the device still accepts a client.
    let bench = Bench::new(served.open(), SLOTS, SLOT);
    bench.start();
    bench.credit(1);
    bench.wait_count(1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Server::bind(&path).unwrap());
    assert!(
        !path.exists(),
        "the socket is removed when the server is dropped"
    );
    std::fs::write(&path, "something else").unwrap();
    let error = Server::bind(&path).unwrap_err();
    assert!(matches!(error, ServerError::NoSocket(_)), "{error}");
}
