//! Tests `daq_core::gpu::driver` with the simulated driver. Failed recordings must leak nothing, hanging work must be
//! leaked, and unknown error codes must be passed on.

use daq_core::gpu::Event;
use daq_core::gpu::driver::{Backing, CudaError, Device, Memory, Stream};
use daq_testkit::{Daq, Simulated, assert_contains, this_test};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BYTES: usize = 4096;

fn memory(device: &'static Device) -> Memory {
    Memory::with(device, BYTES, Backing::Plain).unwrap()
}

/// Checks that all bytes are `byte`.
fn is_full_of(memory: &Memory, byte: u8) {
    let mut bytes = vec![!byte; BYTES];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|found| *found == byte));
}

#[test]
fn graph_replay_runs_recorded_work() {
    let simulated = Simulated::new("latency=1");
    let is_parent = simulated.alone(this_test!(), |device| {
        let (memory, stream) = (memory(device), Stream::new(device, 1).unwrap());
        let graph = stream
            .record(Vec::new(), |stream| stream.fill(&memory, 0, 7, BYTES))
            .unwrap();
        stream.synchronize().unwrap();
        is_full_of(&memory, 0);
        stream.replay(&graph).unwrap();
        stream.synchronize().unwrap();
        is_full_of(&memory, 7);
    });
    if is_parent {
        assert_eq!(simulated.leaks(), [""; 0]);
    }
}

#[test]
fn graph_recording_failure_leaks_nothing() {
    let simulated = Simulated::new("latency=2");
    let is_parent = simulated.alone(this_test!(), |device| {
        let (memory, stream) = (memory(device), Stream::new(device, 1).unwrap());
        let refusal = Device::open(99).unwrap_err();
        let fails = |stream: &Stream| -> Result<(), CudaError> {
            stream.fill(&memory, 0, 7, BYTES)?;
            Err(refusal.clone())
        };
        assert_eq!(stream.record(Vec::new(), fails).unwrap_err(), refusal);
        let panics = |stream: &Stream| -> Result<(), CudaError> {
            stream.fill(&memory, 0, 7, BYTES)?;
            panic!("test panic, as in the host code of a kernel");
        };
        catch_unwind(AssertUnwindSafe(|| stream.record(Vec::new(), panics))).unwrap_err();
        // The stream is no longer recording, so submitted work must run.
        stream.fill(&memory, 0, 9, BYTES).unwrap();
        stream.synchronize().unwrap();
        is_full_of(&memory, 9);
    });
    if is_parent {
        assert_eq!(simulated.leaks(), [""; 0]);
    }
}

#[test]
fn graph_recording_without_graph_is_freed() {
    let simulated = Simulated::new("fail=cuGraphInstantiateWithFlags@1:2");
    let is_parent = simulated.alone(this_test!(), |device| {
        let stream = Stream::new(device, 1).unwrap();
        let error = stream.record(Vec::new(), |_| Ok(())).unwrap_err();
        assert_eq!(error.code, 2);
    });
    if is_parent {
        assert_eq!(simulated.leaks(), [""; 0]);
    }
}

#[test]
fn graph_destroy_failure_frees_executable_graph() {
    let simulated = Simulated::new("fail=cuGraphDestroy@1:801");
    let is_parent = simulated.alone(this_test!(), |device| {
        let stream = Stream::new(device, 1).unwrap();
        stream.record(Vec::new(), |_| Ok(())).unwrap();
    });
    if is_parent {
        assert_eq!(simulated.report()["calls"]["cuGraphExecDestroy"], 1);
        // Only the graph itself is left.
        assert_eq!(simulated.leaks(), ["graphs: 1"]);
    }
}

#[test]
fn event_reports_failure_with_any_error_code() {
    // No real driver returns the second error code.
    let simulated = Simulated::new("fail=cuEventQuery@1:801,fail=cuEventQuery@2:12345");
    let is_parent = simulated.alone(this_test!(), |device| {
        let stream = Stream::new(device, 1).unwrap();
        for stderr in ["CUDA_ERROR_NOT_SUPPORTED", "error 12345"] {
            let mark = stream.record_event().unwrap();
            assert!(mark.is_done());
            assert_eq!(mark.failure().unwrap().name, stderr);
        }
        let mark = stream.record_event().unwrap();
        assert_eq!(mark.failure(), None);
        stream.synchronize().unwrap();
        assert!(mark.is_done());
        assert_eq!(mark.failure(), None);
    });
    if is_parent {
        assert_eq!(simulated.leaks(), [""; 0]);
    }
}

#[test]
fn leaked_device_objects_are_not_freed_on_drop() {
    let simulated = Simulated::new("vmm=1");
    let is_parent = simulated.alone(this_test!(), |device| {
        let memories = [
            memory(device),
            Memory::with(
                device,
                BYTES,
                Backing::Mapped {
                    rdma: false,
                    shareable: false,
                },
            )
            .unwrap(),
        ];
        let stream = Stream::timed(device, 1).unwrap();
        let graph = stream.record(Vec::new(), |_| Ok(())).unwrap();
        let pinned = daq_core::region::SharedWords::pinned(device, 8).unwrap();
        assert!(!device.is_hung());
        device.mark_hung();
        assert!(device.is_hung());
        drop((memories, stream, graph, pinned));
    });
    if is_parent {
        let report = simulated.report();
        let calls = report["calls"].as_object().unwrap();
        for freeing in [
            "cuMemFree_v2",
            "cuMemUnmap",
            "cuMemRelease",
            "cuMemHostUnregister",
            "cuStreamDestroy_v2",
            "cuEventDestroy_v2",
            "cuGraphExecDestroy",
        ] {
            assert!(!calls.contains_key(freeing), "{freeing}: {report:#}");
        }
        assert!(calls.contains_key("cuMemHostRegister_v2"), "{report:#}");
    }
}

/// A source whose frames pass through a kernel from the file `some.cubin`.
const PIPELINE: &str = "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = \"4 KiB\"\n\
                        frames = 20\nsamples = { type = \"int16\" }\n\
                        [ring.raw]\nmemory = \"cuda:0\"\nslot = \"16 KiB\"\nslots = 32\n";

#[test]
fn pinning_failure_is_reported_with_fix() {
    let simulated = Simulated::new("fail=cuMemHostRegister_v2@1:2");
    // CPU stores are not tried in this case, because the ring is pinned first.
    let text = PIPELINE.to_owned()
        + "[staging]\nbackends = []\n[sink.end]\ndriver = \"null\"\ninput = \"raw\"\n";
    let outcome = simulated.on(Daq::new(&text)).run(&[]);
    let stderr = &outcome.stderr;
    assert_contains!(stderr => "CUDA_ERROR_OUT_OF_MEMORY", "LimitMEMLOCK=");
}

#[test]
fn truncated_module_is_rejected_before_driver() {
    let simulated = Simulated::new("");
    let text = PIPELINE.to_owned()
        + "[kernel.some]\nfile = \"some.cubin\"\ninput = \"raw\"\noutput = \"done\"\n\
           [ring.done]\nslots = 12\n[sink.end]\ndriver = \"null\"\ninput = \"done\"\n";
    let daq = simulated.on(Daq::new(&text));
    // A header with a table of 19 sections far beyond the end of the file.
    let mut header = [0; 64];
    header[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header[41] = 0x3b;
    (header[58], header[60]) = (64, 19);
    std::fs::write(daq.path("some.cubin"), header).unwrap();
    let outcome = daq.run(&[]);
    let stderr = &outcome.stderr;
    assert_ne!(outcome.code, 0, "{stderr}");
    assert_contains!(stderr => "the file is truncated or damaged");
    let calls = &simulated.report()["calls"];
    assert!(calls["cuModuleLoadDataEx"].is_null(), "{calls:#}");
}
