use super::*;

#[test]
fn radices_multiply_to_transform_size() {
    let mut had = 0;
    for size in 2..=5000 {
        let mut rest = size;
        for prime in [2, 3, 5, 7] {
            while rest % prime == 0 {
                rest /= prime;
            }
        }
        assert_eq!(has(size), rest == 1, "{size}");
        let Some(radices) = Radices::of(size) else {
            continue;
        };
        had += 1;
        assert_eq!(radices.iter().product::<usize>(), size);
        assert!(
            radices.iter().all(|radix| (2..=8).contains(&radix)),
            "{size}"
        );
    }
    assert!(had > 200, "{had} sizes");
    let order = |size| Radices::of(size).unwrap().iter().collect::<Vec<_>>();
    assert_eq!(order(4096), [8, 8, 8, 8]);
    assert_eq!(order(8192), [4, 4, 8, 8, 8]);
    assert_eq!(order(16_384), [4, 8, 8, 8, 8]);
    assert!(!has(1) && !has(1 << 21) && !has(11));
}

#[test]
fn passes_of_every_size_fit_one_block() {
    let smooth = (2..=MAX_SIZE).filter(|size| has(*size));
    // 48 KiB on every GPU, 64 KiB on Turing and 227 KiB on Hopper.
    for (size, shared) in smooth.flat_map(|size| [48, 64, 227].map(|kib| (size, kib << 10))) {
        let passes = Passes::new(size, false, 7, shared).unwrap_or_else(|| {
            panic!("no passes for {size} points with {shared} bytes of shared memory")
        });
        let columns = passes.columns.map_or(1, |columns| columns.size);
        assert_eq!(columns * passes.rows.size, size);
        for batch in passes.columns.into_iter().chain([passes.rows]) {
            assert!(batch.threads <= MAX_THREADS && batch.shared <= shared);
            // The device code divides by numbers below 2^16.
            assert!(batch.size * batch.count < 1 << 16);
        }
    }
    let short = |size, shared| {
        Passes::new(size, false, 1, shared)
            .unwrap()
            .columns
            .is_none()
    };
    assert!(short(4096, 48 << 10) && short(8192, 227 << 10) && !short(8192, 48 << 10));
}
