use super::*;
use crate::sys::memory::Mapping;
use proptest::prelude::*;
use rustix::mm::{MprotectFlags, mprotect};

const PAGE: usize = 4096;
/// Value of the bytes around a target, which no copy may change.
const BAND: u8 = 0xa5;

/// Memory between two inaccessible pages.
struct Guarded {
    all: Mapping,
    bytes: usize,
}

impl Guarded {
    fn new(pages: usize) -> Self {
        let bytes = pages * PAGE;
        let all = Mapping::anonymous(bytes + 2 * PAGE, false).unwrap();
        for guard in [0, bytes + PAGE] {
            // SAFETY: the page belongs to the mapping that was just created, and nothing refers to it.
            unsafe {
                mprotect(
                    all.address().add(guard).as_ptr().cast(),
                    PAGE,
                    MprotectFlags::empty(),
                )
            }
            .unwrap();
        }
        Self { all, bytes }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range contains the accessible pages between the guard pages, and is borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.all.address().add(PAGE).as_ptr(), self.bytes) }
    }
}

/// A copy function and its name.
type Named = (String, Box<dyn Fn(*mut u8, *const u8, usize)>);
type Copy = unsafe fn(*mut u8, *const u8, usize);

/// Returns all copy functions that this machine supports.
fn methods() -> Vec<Named> {
    let mut methods: Vec<Named> = Vec::new();
    for width in Width::ALL {
        if width.is_supported() {
            let by = move |to, from, bytes| {
                // SAFETY: the ranges of the tests are inside two mappings, and the processor supports the width.
                unsafe { copy_to_with(width, to, from, bytes) };
            };
            methods.push((format!("{width:?}"), Box::new(by)));
        } else {
            eprintln!("skipped: this processor does not support {width:?}");
        }
    }
    let mut add = |name: &str, copy: Copy| {
        // SAFETY: the ranges of the tests are inside two mappings.
        let by = move |to, from, bytes| unsafe { copy(to, from, bytes) };
        methods.push((name.to_owned(), Box::new(by)));
    };
    add("to", |to, from, bytes| {
        // SAFETY: the caller guarantees valid ranges.
        unsafe { copy_to(to, from, bytes) };
    });
    add("from", copy_from);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("sse4.1") {
        add("from, by 16", x86::load_by_16);
    }
    methods
}

struct Pair {
    from: Guarded,
    to: Guarded,
}

impl Pair {
    fn new(pages: usize) -> Self {
        let (mut from, mut to) = (Guarded::new(pages), Guarded::new(pages));
        // No value equals `BAND`, and values at distances of powers of two differ.
        for (n, byte) in from.bytes().iter_mut().enumerate() {
            *byte = u8::try_from(n * 7 % 163).unwrap();
        }
        to.bytes().fill(BAND);
        Self { from, to }
    }

    /// Copies, and then checks the target and the bytes around it. Accesses further outside hit the guard pages.
    fn check(&mut self, (name, copy): &Named, to: usize, from: usize, bytes: usize) {
        let source = &self.from.bytes()[from..from + bytes];
        let target = self.to.bytes();
        copy(target[to..to + bytes].as_mut_ptr(), source.as_ptr(), bytes);
        fence();
        let label = format!("{name}: {bytes} bytes from {from} to {to}");
        assert!(target[to..to + bytes] == *source, "{label}");
        let band = to.saturating_sub(256)..(to + bytes + 256).min(target.len());
        let (before, after) = (&target[band.start..to], &target[to + bytes..band.end]);
        let is_whole = before.iter().chain(after).all(|byte| *byte == BAND);
        assert!(is_whole, "{label}: written outside");
        target[to..to + bytes].fill(BAND);
    }
}

#[test]
fn store_of_small_sizes_at_all_line_offsets_is_exact() {
    let mut pair = Pair::new(1);
    for method in &methods() {
        for bytes in 0..=300 {
            for offset in 0..LINE {
                let other = offset * 13 % LINE;
                pair.check(method, offset, other, bytes);
                // One range, or both, end directly before a guard page.
                let last = PAGE - bytes;
                pair.check(method, last - offset, last, bytes);
                pair.check(method, last, last - offset, bytes);
            }
        }
    }
}

#[test]
fn store_with_prefetch_stays_within_source() {
    let pages = (1 << 20) / PAGE + 2;
    let mut pair = Pair::new(pages);
    for method in &methods() {
        for bytes in [(1 << 20) - 1, 1 << 20, (1 << 20) + 333] {
            let last = pages * PAGE - bytes;
            pair.check(method, last, last - 5, bytes);
            pair.check(method, last - 3, last, bytes);
            pair.check(method, 0, 1, bytes);
        }
    }
}

#[test]
fn widest_store_is_widest_supported() {
    let here = Width::ALL.into_iter().filter(|width| width.is_supported());
    assert_eq!(Some(Width::widest()), here.max());
    assert_eq!(Width::widest(), Width::widest());
}

proptest! {
    #[test]
    fn store_writes_exactly_its_range(
        bytes in 0_usize..12_000, to in 0_usize..4000, from in 0_usize..4000,
    ) {
        let mut pair = Pair::new(4);
        for method in &methods() {
            pair.check(method, to, from, bytes);
        }
    }
}
