//! Plans that need more memory than the machine has.

use super::*;
use crate::topology::HostMemory;

const GIB: u64 = 1 << 30;

/// Returns a machine with `available` bytes of host memory, of which 1 MiB can be locked.
fn with_memory(available: u64, huge_pool: u64) -> Topology {
    Topology {
        memory: Some(HostMemory {
            available,
            limited_by: "/proc/meminfo".to_owned(),
            huge_pool,
            lockable: Some(1 << 20),
        }),
        ..host()
    }
}

fn with_slots(slots: u32) -> String {
    PIPELINE.replacen("slots = 4", &format!("slots = {slots}"), 1)
}

#[test]
fn ring_larger_than_host_memory_is_unavailable() {
    let plan = plan_of(&with_slots(10_000_000), &with_memory(8 * GIB, 0)).unwrap();
    assert_contains!(plan.to_string() =>
        "missing  the pipeline needs", "but 8 GiB are available (/proc/meminfo)", "largest ring, `raw` (10000000 × 5 KiB"
    );
    assert_eq!(plan.unavailable.len(), 1);
    let fits = plan_of(&with_slots(1000), &with_memory(8 * GIB, 0)).unwrap();
    assert!(fits.unavailable.is_empty());
    let unknown = plan_of(&with_slots(10_000_000), &host()).unwrap();
    assert!(unknown.unavailable.is_empty() && unknown.notes.is_empty());
}

#[test]
fn pool_of_huge_pages_contains_rings() {
    let text = with_slots(1_000_000);
    let needed = plan_of(&text, &host()).unwrap();
    let ring = needed.ring("raw").unwrap().region_bytes as u64;
    let rest = needed.memory as u64 - ring;
    let of = |available, pool| plan_of(&text, &with_memory(available, pool)).unwrap();
    assert!(of(rest, ring).unavailable.is_empty());
    assert_eq!(of(rest - 1, ring).unavailable.len(), 1);
    assert_eq!(of(rest, ring - 1).unavailable.len(), 1);
}

#[test]
fn rings_beyond_locked_memory_limit_are_noted() {
    let plan = plan_of(&with_slots(1000), &with_memory(8 * GIB, 0)).unwrap();
    assert_contains!(plan.to_string() => "note     ", "may lock 1 MiB", "LimitMEMLOCK=");
}

#[test]
fn ring_larger_than_gpu_memory_is_unavailable() {
    let gpu = |memory| Topology {
        gpus: vec![Gpu {
            memory: Some(memory),
            ..Gpu::new(0, "Test GPU")
        }],
        ..host()
    };
    let text = PIPELINE.replacen("slots = 4", "slots = 1000000\nmemory = \"cuda:0\"", 1);
    let plan = plan_of(&text, &gpu(GIB)).unwrap();
    assert_contains!(plan.unavailable.join("\n") => "on cuda:0, but the GPU has 1 GiB", "`raw` (1000000 × 5 KiB");
    assert!(
        plan_of(&text, &gpu(80 * GIB))
            .unwrap()
            .unavailable
            .is_empty()
    );
}

#[test]
fn private_slots_of_free_running_engine_count_as_gpu_memory() {
    let text = PIPELINE.replacen("slots = 4", "slots = 1000\nmemory = \"cuda:0\"", 1);
    let mut plan = plan_of(&text, &host()).unwrap();
    let ring = plan.ring("raw").unwrap();
    let bytes = ring.region_bytes;
    // A socket fills a ring in host memory; an engine writes to the GPU itself.
    let source = plan.sources.first_mut().unwrap();
    "raw".clone_into(&mut source.ring);
    source.engine = Some(PlannedEngine {
        private_slot_bytes: Some(bytes),
        doorbell_of: None,
        faults: &[],
    });
    let missing = |memory: usize| {
        let mut plan = plan.clone();
        plan.unavailable.clear();
        let topology = Topology {
            gpus: vec![Gpu {
                memory: Some(memory as u64),
                ..Gpu::new(0, "Test GPU")
            }],
            ..host()
        };
        crate::plan::memory::compare(&mut plan, &topology);
        plan.unavailable.len()
    };
    assert_eq!(missing(2 * bytes - 1), 1);
    assert_eq!(missing(100 * bytes), 0);
}
