//! Checks the lifetime and the concurrent use of mappings.

use super::bytes::{random, same};
use super::target::{KEPT, Target};
use super::{Verdict, expect};
use crate::sys::fork::{Child, child_uses};
use daq_core::doorbell::Doorbell;
use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError};
use std::sync::Arc;

const BYTES: usize = 10_001;

/// Stores bytes through the mapping `to`, and checks that CUDA reads the same bytes through the mapping `through`.
fn arrives(
    target: &Target,
    seed: u64,
    to: &BarMapping,
    through: &BarMapping,
) -> Result<(), Verdict> {
    let sent = random(seed, BYTES);
    to.copy_to(0, &sent)?;
    let read = target.read(through, 0, BYTES)?;
    same(&sent, &read, || {
        "stored by the CPU, read by CUDA".to_owned()
    })
}

pub(super) fn two_mappings(target: &Target) -> Result<(), Verdict> {
    let (first, second) = (target.method.map(BYTES)?, target.method.map(BYTES)?);
    let (ours, theirs) = (random(1, BYTES), random(2, BYTES));
    // The stores alternate between the mappings, so that mixed-up addresses are detected.
    for (at, (a, b)) in (0..)
        .step_by(777)
        .zip(ours.chunks(777).zip(theirs.chunks(777)))
    {
        first.copy_to(at, a)?;
        second.copy_to(at, b)?;
    }
    let read = target.read(&first, 0, BYTES)?;
    same(&ours, &read, || "the first of two buffers".to_owned())?;
    drop(first);
    let read = target.read(&second, 0, BYTES)?;
    same(&theirs, &read, || {
        "the second of two buffers, after the first was freed".to_owned()
    })?;
    arrives(target, 3, &second, &second)
}

pub(super) fn double_map(target: &Target) -> Result<(), Verdict> {
    let first = target.method.map(BYTES)?;
    let again = match first.again() {
        Ok(again) => again,
        Err(refusal) => {
            // The first mapping must stay valid after a second one was rejected.
            arrives(target, 1, &first, &first)?;
            return Err(Verdict::Skipped(refusal.why));
        }
    };
    for (seed, to, through) in [(1, &first, &again), (2, &again, &first)] {
        arrives(target, seed, to, through)?;
        let mut read = vec![0; BYTES];
        through.copy_from(0, &mut read)?;
        same(&random(seed, BYTES), &read, || {
            "stored through one mapping, read through the other".to_owned()
        })?;
    }
    drop(first);
    arrives(target, 3, &again, &again)
}

pub(super) fn use_after_free(target: &Target) -> Result<(), Verdict> {
    let mapped = target.method.map(BYTES)?;
    let all = mapped.bytes();
    for (offset, bytes) in [(all, 1), (all - 1, 2), (usize::MAX, 1)] {
        let answer = mapped.copy_to(offset, &[0; 2][..bytes]);
        expect(
            matches!(answer, Err(BarMappingError::Outside { .. })),
            || {
                format!(
                    "expected the access to {bytes} bytes at offset {offset} of {all} to be refused, got {answer:?}"
                )
            },
        )?;
    }
    let bell = Doorbell::new(mapped.clone(), 0)?;
    let weak = Arc::downgrade(&mapped);
    drop(mapped);
    // The doorbell must keep the memory alive.
    bell.ring(0x0102_0304_0506_0708)?;
    let held = weak.upgrade().ok_or_else(|| {
        Verdict::Failed(
            "expected a doorbell to keep its memory allocated, got freed memory".to_owned(),
        )
    })?;
    let read = target.read(&held, 0, 8)?;
    same(&[8, 7, 6, 5, 4, 3, 2, 1], &read, || {
        "a doorbell that has the only reference to its memory".to_owned()
    })?;
    drop((held, bell));
    expect(weak.upgrade().is_none(), || {
        "expected the memory to be freed with its last reference, got memory that is still allocated"
            .to_owned()
    })
}

pub(super) fn concurrent_pinning(target: &Target) -> Result<(), Verdict> {
    const THREADS: u64 = 4;
    const TIMES: u64 = 8;
    let method = target.method;
    let work = move |thread: u64| -> Result<(), Verdict> {
        for i in 0..TIMES {
            let sent = random(thread * TIMES + i, BYTES);
            let mapped = method.map(BYTES + 3)?;
            mapped.copy_to(3, &sent)?;
            let mut read = vec![0; BYTES];
            mapped.copy_from(3, &mut read)?;
            same(&sent, &read, || format!("thread {thread}, mapping {i}"))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        for thread in threads {
            thread.join().map_err(|_| {
                Verdict::Failed("expected no panic of a thread, got one".to_owned())
            })??;
        }
        Ok(())
    })
}

pub(super) fn fork(target: &Target) -> Result<(), Verdict> {
    let mapped = target.method.map(BYTES)?;
    arrives(target, 1, &mapped, &mapped)?;
    let child = child_uses(&mapped)?;
    expect(child == Child::Refused, || {
        format!("expected every use of the mapping in a child process to be refused, got {child:?}")
    })?;
    let read = target.read(&mapped, 0, BYTES)?;
    same(&random(1, BYTES), &read, || {
        "data stored by the parent before the fork".to_owned()
    })?;
    arrives(target, 2, &mapped, &mapped)
}

/// Checks the operations on a device that was marked as lost.
pub(super) fn lost(target: &Target) -> Result<(), Verdict> {
    let mapped = &target.kept;
    let bell = Doorbell::new(mapped.clone(), 0)?;
    let answers = [
        mapped.check(),
        mapped.stores().map(|_| ()),
        mapped.copy_to(0, &[1]),
        mapped.copy_from(KEPT - 1, &mut [0]),
        bell.ring(1),
    ];
    expect(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(BarMappingError::Lost { .. }))),
        || format!("expected every use of the mapping to report the lost device, got {answers:?}"),
    )
}
