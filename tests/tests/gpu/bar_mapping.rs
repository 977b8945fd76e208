//! Tests BAR mappings of GPU memory: the backends with simulated libraries, and on this machine's GPU if there is one.

mod sys;

use daq_core::doorbell::Doorbell;
use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError, Refusal, probe};
use daq_core::gpu::driver::{Backing, Device};
use daq_core::gpu::{Backend, Writer};
use daq_core::region::{Placement, Region, RegionError};
use daq_testkit::{Simulated, assert_contains, own_process, skip, this_test};
use std::process::Command;
use std::sync::Arc;
use sys::{device_reads, device_writes, in_fork};

/// Size of a GPU page in bytes.
const PAGE: usize = 64 << 10;
/// Kinds of CUDA memory that cannot be exported: plain, and virtual.
const KINDS: [Backing; 2] = [
    Backing::Plain,
    Backing::Mapped {
        rdma: true,
        shareable: false,
    },
];

/// Runs `work` in a child process with the simulated machine. Returns true in the parent process, after checking that
/// all resources were released.
fn alone(test: &str, machine: &Simulated, work: impl FnOnce(&'static Device)) -> bool {
    let is_parent = machine.alone(test, work);
    if is_parent {
        machine.assert_all_released();
    }
    is_parent
}

/// Returns a pattern of bytes that depends on `seed`.
fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|n| u8::try_from((n * 131 + n / 251 + seed * 17 + 1) % 256).unwrap())
        .collect()
}

fn backends(refused: &[Refusal]) -> Vec<Backend> {
    refused.iter().map(|refusal| refusal.backend).collect()
}

/// Checks that the memory is initially zero, that the device sees CPU stores of any size and offset at exactly that
/// position, and that the CPU reads what the device writes.
fn assert_both_sides_see_the_same(mapped: &Arc<BarMapping>) {
    assert!(
        device_reads(mapped, 0, mapped.bytes())
            .iter()
            .all(|byte| *byte == 0)
    );
    let mut model = vec![0; mapped.bytes()];
    for (seed, offset) in [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 63, 64, 129, 1023, 4095]
        .into_iter()
        .enumerate()
    {
        for bytes in [
            0, 1, 2, 3, 7, 8, 15, 16, 31, 33, 64, 100, 511, 512, 1025, 4096, 10_007,
        ] {
            let stored = pattern(bytes, seed + bytes);
            mapped.copy_to(offset, &stored).unwrap();
            model[offset..offset + bytes].copy_from_slice(&stored);
            let end = offset + bytes + 64;
            assert!(
                device_reads(mapped, 0, end) == model[..end],
                "wrong data in {bytes} bytes at offset {offset}"
            );
        }
    }
    let last = mapped.bytes() - 5;
    mapped.copy_to(last, &[9, 8, 7, 6, 5]).unwrap();
    assert_eq!(device_reads(mapped, last, 5), [9, 8, 7, 6, 5]);
    for (offset, bytes) in [(1, 1), (7, 1023), (129, 4097)] {
        let written = pattern(bytes, 77);
        device_writes(mapped, offset, &written);
        let mut read = vec![0; bytes];
        mapped.copy_from(offset, &mut read).unwrap();
        assert!(
            read == written,
            "wrong data in {bytes} bytes at offset {offset}"
        );
    }
    let have = mapped.bytes();
    for (offset, bytes) in [(have, 1), (have - 1, 2), (usize::MAX, 2), (have + 1, 0)] {
        let outside = BarMappingError::Outside {
            offset,
            bytes,
            have,
        };
        assert_eq!(
            mapped.copy_to(offset, &vec![1; bytes]),
            Err(outside.clone())
        );
        assert_eq!(mapped.copy_from(offset, &mut vec![1; bytes]), Err(outside));
    }
    let bell = Doorbell::new(Arc::clone(mapped), 4096).unwrap();
    assert_eq!(bell.address(), mapped.address() + 4096);
    bell.ring(0x0123_4567_89ab_cdef).unwrap();
    assert_eq!(
        device_reads(mapped, 4096, 8),
        0x0123_4567_89ab_cdef_u64.to_le_bytes()
    );
}

/// Checks that stores through one mapping are visible through the other, until both are dropped.
fn assert_two_mappings_agree(first: Arc<BarMapping>) {
    let second = first.again().unwrap();
    assert_eq!(
        (first.address(), first.bytes()),
        (second.address(), second.bytes())
    );
    let mut read = vec![0; 1000];
    first.copy_to(13, &pattern(1000, 1)).unwrap();
    second.copy_from(13, &mut read).unwrap();
    assert!(read == pattern(1000, 1));
    drop(first);
    second.copy_to(14, &pattern(1000, 2)).unwrap();
    assert!(device_reads(&second, 14, 1000) == pattern(1000, 2));
}

/// Checks that a forked child gets an error and does not crash, and that the parent can continue.
fn assert_fork_is_error(mapped: Arc<BarMapping>) {
    let answers = || {
        let is_reported = |result: Result<(), BarMappingError>| {
            matches!(result, Err(BarMappingError::Forked { .. }))
        };
        let mut byte = [0];
        u8::from(is_reported(mapped.check()))
            + u8::from(is_reported(mapped.copy_to(0, &[1])))
            + u8::from(is_reported(mapped.copy_from(0, &mut byte)))
    };
    let mut stores = mapped.stores().unwrap();
    let in_child = in_fork(|| {
        let held = matches!(stores.copy(0, &[1]), Err(BarMappingError::Forked { .. }));
        answers() + u8::from(held)
    });
    assert_eq!(in_child, 4);
    drop(stores);
    mapped.copy_to(0, &[42]).unwrap();
    assert_eq!(device_reads(&mapped, 0, 1), [42]);
    // A child that drops the mapping must not call the library. The parent calls it when this closure is dropped.
    let dropped = in_fork(move || {
        drop(mapped);
        0
    });
    assert_eq!(dropped, 0);
}

#[test]
fn mapping_without_libraries_uses_host_memory_for_words_only() {
    let machine = Simulated::new("");
    alone(this_test!(), &machine, |device| {
        let bell = BarMapping::new(device, 8, Writer::Doorbell, &Backend::ALL).unwrap();
        assert_eq!(bell.backend(), Backend::Host);
        assert_eq!(backends(bell.refused()), Backend::ALL[..3]);
        let message: Vec<String> = bell.refused().iter().map(ToString::to_string).collect();
        for (message, words) in message.iter().zip([
            ["gdrapi: libgdrapi.so.2 cannot be opened", "install GDRCopy"],
            ["dma-buf: the driver exports", "does not let the CPU map it"],
            ["vulkan: ", "libvulkan1"],
        ]) {
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
        assert_both_sides_see_the_same(&BarMapping::with(device, PAGE, Backend::Host).unwrap());
        let refusal = bell.again().unwrap_err();
        assert_contains!(refusal.to_string() => "share the mapping");
        let refusal =
            BarMapping::with_backing(device, 8, Backend::Host, Backing::Plain).unwrap_err();
        assert!(refusal.to_string().contains("its own memory"), "{refusal}");
        for writer in [Writer::Cpu, Writer::Fpga, Writer::Nic] {
            let unmappable = BarMapping::new(device, 8, writer, &Backend::ALL).unwrap_err();
            assert_eq!(backends(&unmappable.refused), writer.backends());
            assert!(
                !unmappable
                    .refused
                    .iter()
                    .any(|refusal| refusal.backend == Backend::Host)
            );
        }
        let error = Region::mapped(device, 8, Writer::Cpu, &Backend::ALL).unwrap_err();
        assert!(matches!(error, RegionError::Unmappable(_)), "{error}");
    });
}

#[test]
fn mapping_backend_not_allowed_is_not_tried() {
    let machine = Simulated::new("dma-buf=map").with_gdr("");
    let is_parent = alone(this_test!(), &machine, |device| {
        let mapped = BarMapping::new(device, 8, Writer::Doorbell, &[Backend::Host]).unwrap();
        assert_eq!(mapped.backend(), Backend::Host);
        assert_eq!(backends(mapped.refused()), Backend::ALL[..3]);
        let message = mapped.refused()[0].to_string();
        assert!(message.contains("`backends` of `[staging]`"), "{message}");
        let mapped =
            BarMapping::new(device, 8, Writer::Cpu, &[Backend::Vulkan, Backend::DmaBuf]).unwrap();
        assert_eq!(mapped.backend(), Backend::DmaBuf);
        assert_eq!(backends(mapped.refused()), [Backend::Gdrapi]);
        let unmappable = BarMapping::new(device, 8, Writer::Nic, &[Backend::Vulkan]).unwrap_err();
        assert_eq!(
            backends(&unmappable.refused),
            [Backend::Gdrapi, Backend::DmaBuf]
        );
        let found = probe(device, &[Backend::DmaBuf, Backend::Host]);
        let made: Vec<_> = found
            .iter()
            .map(|(backend, answer)| (*backend, answer.is_ok()))
            .collect();
        let expected = Backend::ALL
            .map(|backend| (backend, matches!(backend, Backend::DmaBuf | Backend::Host)));
        assert_eq!(made, expected);
    });
    if is_parent {
        assert_eq!(machine.gdr_calls(), [""; 0]);
    }
}

#[test]
fn gdrcopy_maps_plain_and_virtual_memory() {
    let machine = Simulated::new("").with_gdr("");
    let is_parent = alone(this_test!(), &machine, |device| {
        for backing in KINDS {
            for bytes in [1, PAGE, PAGE + 1, 3 << 20] {
                let mapped =
                    BarMapping::with_backing(device, bytes, Backend::Gdrapi, backing).unwrap();
                assert_eq!(mapped.bytes(), bytes.next_multiple_of(PAGE));
                assert!(mapped.address().is_multiple_of(PAGE as u64));
                assert_both_sides_see_the_same(&mapped);
                assert_two_mappings_agree(mapped);
            }
        }
        let mapped = BarMapping::new(device, PAGE, Writer::Cpu, &Backend::ALL).unwrap();
        assert_eq!(
            (mapped.backend(), mapped.refused()),
            (Backend::Gdrapi, &[][..])
        );
        let region = Region::mapped(device, 100, Writer::Cpu, &Backend::ALL).unwrap();
        let mapping = region.mapping().unwrap();
        assert_eq!(mapping.address(), region.address().as_ptr().addr() as u64);
        assert_eq!(
            (region.placement(), region.bytes()),
            (Placement::Cuda(0), PAGE)
        );
    });
    if is_parent {
        // One call for each plain allocation.
        assert_eq!(machine.report()["calls"]["cuPointerSetAttribute"], 4);
        assert_eq!(
            machine
                .gdr_calls()
                .iter()
                .filter(|call| *call == "gdr_open 0")
                .count(),
            1
        );
    }
}

#[test]
fn gdrcopy_without_virtual_memory_maps_plain_memory() {
    let machine = Simulated::new("vmm=0").with_gdr("");
    alone(this_test!(), &machine, |device| {
        assert_both_sides_see_the_same(&BarMapping::with(device, PAGE, Backend::Gdrapi).unwrap());
    });
}

#[test]
fn gdrcopy_pin_failure_falls_back_to_plain_memory() {
    let machine = Simulated::new("").with_gdr("fail=gdr_pin_buffer@1:22");
    let is_parent = alone(this_test!(), &machine, |device| {
        assert_both_sides_see_the_same(&BarMapping::with(device, PAGE, Backend::Gdrapi).unwrap());
    });
    if is_parent {
        assert_eq!(machine.report()["calls"]["cuMemAlloc_v2"], 1);
    }
}

#[test]
fn dma_buf_with_driver_support_is_mapped() {
    let machine = Simulated::new("dma-buf=map");
    alone(this_test!(), &machine, |device| {
        // The simulated driver exports plain memory only from its beginning, and large allocations begin at a page.
        for (backing, bytes) in [(KINDS[0], 2 << 20), (KINDS[1], 100)] {
            let mapped = BarMapping::with_backing(device, bytes, Backend::DmaBuf, backing).unwrap();
            assert_both_sides_see_the_same(&mapped);
            assert_two_mappings_agree(mapped);
        }
        let mapped = BarMapping::new(device, PAGE, Writer::Nic, &Backend::ALL).unwrap();
        assert_eq!(mapped.backend(), Backend::DmaBuf);
        assert_eq!(backends(mapped.refused()), [Backend::Gdrapi]);
    });
}

/// If any step fails, the next backend is tried, and the failed backend leaks nothing.
#[test]
fn mapping_step_failure_is_reported_and_leaks_nothing() {
    let cases: [(&str, &str, &str, &[&str]); 9] = [
        (
            "",
            "fail=gdr_open@1:2",
            "gdrapi",
            &["No such file", "modprobe gdrdrv"],
        ),
        (
            "",
            "fail=gdr_pin_buffer@1:22,fail=gdr_pin_buffer@2:12",
            "gdrapi",
            &["gdr_pin_buffer returned 12", "BAR1"],
        ),
        (
            "",
            "fail=gdr_pin_buffer@1:12,fail=gdr_pin_buffer@2:22",
            "gdrapi",
            &["22", "dmesg"],
        ),
        (
            "",
            "fail=gdr_map@1:12,fail=gdr_map@2:11",
            "gdrapi",
            &["gdr_map returned 11", "dmesg"],
        ),
        (
            "",
            "fail=gdr_get_info_v2@1:25,fail=gdr_get_info_v2@2:25",
            "gdrapi",
            &["gdr_get_info_v2 returned 25"],
        ),
        (
            "",
            "misalign",
            "gdrapi",
            &["the mapping starts at GPU address 0x"],
        ),
        (
            "dma-buf=none",
            "fail=gdr_open@1:2",
            "dma-buf",
            &["NOT_SUPPORTED", "open kernel modules"],
        ),
        (
            "fail=cuMemCreate@1:2",
            "",
            "gdrapi",
            &["OUT_OF_MEMORY", "nvidia-smi"],
        ),
        (
            "vmm=0,fail=cuPointerSetAttribute@1:801",
            "",
            "gdrapi",
            &["preparing memory of cuda:0"],
        ),
    ];
    for (cuda, gdr, backend, words) in cases {
        let machine = Simulated::new(cuda).with_gdr(gdr);
        let prepare = |command: &mut Command| {
            machine.prepare(command).env("VK_DRIVER_FILES", "/dev/null");
        };
        let case = format!("{cuda} {gdr}");
        let output = own_process(this_test!(), &case, prepare, || {
            let device = Device::open(0).unwrap();
            let mapped = BarMapping::new(device, 8, Writer::Doorbell, &Backend::ALL).unwrap();
            let mut refused = mapped.refused().iter();
            let refusal = refused.find(|refusal| refusal.backend.name() == backend);
            let message = refusal.unwrap().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        });
        if let Some(output) = output {
            assert!(output.status.success(), "{case}: {output:?}");
            machine.assert_all_released();
        }
    }
}

#[test]
fn mapping_larger_than_memory_is_rejected() {
    let machine = Simulated::new("memory=64MiB,dma-buf=map").with_gdr("");
    alone(this_test!(), &machine, |device| {
        for backend in Backend::ALL {
            for bytes in [usize::MAX, usize::MAX / 2] {
                assert!(
                    BarMapping::with(device, bytes, backend).is_err(),
                    "{backend}"
                );
            }
        }
        let unmappable = BarMapping::new(device, 65 << 20, Writer::Cpu, &Backend::ALL).unwrap_err();
        let message = unmappable.to_string();
        assert_contains!(message => "OUT_OF_MEMORY", "nvidia-smi");
        // Both mappings share one allocation.
        let mapped = BarMapping::with(device, 40 << 20, Backend::Gdrapi).unwrap();
        mapped.again().unwrap();
    });
}

#[test]
fn mapping_used_after_fork_returns_error() {
    let machine = Simulated::new("dma-buf=map").with_gdr("");
    alone(this_test!(), &machine, |device| {
        for backend in [Backend::Gdrapi, Backend::DmaBuf, Backend::Host] {
            assert_fork_is_error(BarMapping::with(device, PAGE, backend).unwrap());
        }
    });
}

/// The memory disappears while it is mapped, as when a GPU fails on the bus. The store must cause no crash, and this
/// and all later stores must return an error.
#[test]
fn mapping_lost_gpu_returns_error() {
    let machine = Simulated::new("").with_gdr("lose=3");
    alone(this_test!(), &machine, |device| {
        let other = BarMapping::with(device, PAGE, Backend::Gdrapi).unwrap();
        let first = BarMapping::with(device, PAGE, Backend::Gdrapi).unwrap();
        let bell = Doorbell::new(Arc::clone(&first), 0).unwrap();
        bell.ring(1).unwrap();
        let mut stores = first.stores().unwrap();
        stores.copy(100, &[1; 1000]).unwrap();
        // The simulated library makes the memory disappear when it is mapped a second time.
        let second = first.again().unwrap();
        let lost = Err(BarMappingError::Lost { ordinal: 0 });
        assert_eq!(stores.copy(200, &[2; 5000]), lost);
        assert_eq!(stores.word(8, 1), lost);
        drop(stores);
        assert_eq!(first.check(), lost);
        assert_eq!(bell.ring(2), lost);
        let message = first.again().unwrap_err().to_string();
        assert_contains!(message => "is gone", "xid");
        // The second mapping detects the loss when it is used.
        assert_eq!(second.check(), Ok(()));
        assert_eq!(second.copy_from(0, &mut [0; 8]), lost);
        assert_eq!(second.check(), lost);
        other.copy_to(0, &[3]).unwrap();
        assert_eq!(device_reads(&other, 0, 1), [3]);
        drop((bell, first, second));
        // The next mapping may get the same entry in the guard's table.
        let next = BarMapping::with(device, PAGE, Backend::Gdrapi).unwrap();
        next.copy_to(0, &[4]).unwrap();
    });
}

#[test]
fn mapping_of_leaked_device_is_lost_and_not_freed() {
    let machine = Simulated::new("").with_gdr("");
    let is_parent = machine.alone(this_test!(), |device| {
        let mapped = BarMapping::with(device, PAGE, Backend::Gdrapi).unwrap();
        let host = BarMapping::with(device, PAGE, Backend::Host).unwrap();
        device.mark_hung();
        assert_eq!(mapped.check(), Err(BarMappingError::Lost { ordinal: 0 }));
        assert_eq!(
            host.copy_to(0, &[1]),
            Err(BarMappingError::Lost { ordinal: 0 })
        );
    });
    if is_parent {
        let calls = machine.gdr_calls();
        assert!(
            !calls.iter().any(|call| call.starts_with("gdr_un")),
            "{calls:?}"
        );
        let leaks = &machine.report()["leaks"];
        assert_eq!((&leaks["memory"], &leaks["host"]), (&1.into(), &1.into()));
    }
}

#[test]
fn fault_outside_mapping_terminates_process() {
    let machine = Simulated::new("").with_gdr("");
    alone(this_test!(), &machine, |device| {
        let mapped = BarMapping::with(device, PAGE, Backend::Gdrapi).unwrap();
        assert_eq!(in_fork(sys::fault), -libc::SIGBUS);
        assert_eq!(in_fork(sys::send_bus_errors), -libc::SIGBUS);
        mapped.copy_to(0, &[1]).unwrap();
    });
}

#[test]
fn mapping_by_many_threads_succeeds() {
    let machine = Simulated::new("dma-buf=map").with_gdr("");
    alone(this_test!(), &machine, |device| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for turn in 0..8 {
                        let backend = Backend::ALL[[0, 1, 3][(thread + turn) % 3]];
                        let mapped = BarMapping::with(device, PAGE, backend).unwrap();
                        let stored = pattern(999, thread * 8 + turn);
                        mapped.copy_to(5, &stored).unwrap();
                        assert!(device_reads(&mapped, 5, 999) == stored);
                    }
                });
            }
        });
    });
}

/// Tests what this machine's GPU and libraries support. Prints the reason for everything that is not supported.
#[test]
fn mapping_on_real_gpu_meets_contract() {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(why) => skip!("{why}"),
    };
    for found in probe(device, &Backend::ALL) {
        let (backend, answer) = found;
        match answer {
            Err(refusal) => daq_testkit::print_uncaptured(&format!("not checked: {refusal}")),
            Ok(costs) => {
                daq_testkit::print_uncaptured(&format!("{backend}: {costs:?}"));
                for bytes in [1, PAGE + 1, 3 << 20] {
                    let mapped = BarMapping::with(device, bytes, backend).unwrap();
                    assert_both_sides_see_the_same(&mapped);
                    assert_fork_is_error(mapped);
                }
                if matches!(backend, Backend::Gdrapi | Backend::DmaBuf) {
                    for backing in KINDS {
                        let mapped =
                            BarMapping::with_backing(device, PAGE, backend, backing).unwrap();
                        assert_both_sides_see_the_same(&mapped);
                        assert_two_mappings_agree(mapped);
                    }
                }
            }
        }
    }
}
