//! Tests with a full disk. The disk is a small tmpfs in a separate mount namespace, or the directory `DAQ_SMALL_DIR` on
//! a filesystem of 16 MiB.

use daq_sinks::file::segment::{Options, SegmentError, SegmentWriter};
use daq_testkit::{small_disk, this_test};
use std::path::{Path, PathBuf};

fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n)
        .map(|i| u8::try_from((i * 7 + i / 253 + seed * 13) % 256).unwrap())
        .collect()
}

/// Writes pieces until the disk is full. Returns the accepted bytes and the rejected piece.
fn fill(writer: &mut SegmentWriter, sizes: &[usize]) -> (Vec<u8>, Vec<u8>) {
    let mut taken = Vec::new();
    for i in 0.. {
        assert!(taken.len() < 64 << 20, "the disk was never full");
        let piece = pattern(sizes[i % sizes.len()], i);
        match writer.write(&piece) {
            Ok(()) => taken.extend(piece),
            Err(SegmentError::Full { wrote, wanted, .. }) => {
                assert_eq!((wrote, wanted), (taken.len() as u64, piece.len() as u64));
                assert_eq!(writer.len(), wrote);
                return (taken, piece);
            }
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!()
}

fn options(reserve: bool) -> Options {
    Options {
        buffer_bytes: 64 << 10,
        buffers: 3,
        reserve,
        ..Options::default()
    }
}

/// Sizes smaller and larger than all buffers together. No size is a multiple of the block size.
const SIZES: [usize; 4] = [50_001, 700_003, 4_095, 131_073];

fn ballast(dir: &Path) -> PathBuf {
    let path = dir.join("ballast");
    std::fs::write(&path, vec![1; 8 << 20]).unwrap();
    path
}

fn goes_on(dir: &Path, reserve: bool) {
    let ballast = ballast(dir);
    let mut writer = SegmentWriter::new(&options(reserve)).unwrap();
    writer.open(dir, "a").unwrap();
    let (mut wanted, piece) = fill(&mut writer, &SIZES);
    assert!(wanted.len() > 1 << 20);
    for _ in 0..3 {
        assert!(
            matches!(writer.write(&piece), Err(SegmentError::Full { .. })),
            "still full"
        );
    }
    std::fs::remove_file(ballast).unwrap();
    writer.write(&piece).unwrap();
    wanted.extend(&piece);
    for i in 0..5 {
        let more = pattern(100_001, 1000 + i);
        writer.write(&more).unwrap();
        wanted.extend(more);
    }
    let closed = writer.close(b"{}").unwrap();
    assert!(
        std::fs::read(closed.data).unwrap() == wanted,
        "no byte may be changed, duplicated or lost"
    );
    assert!(closed.meta.exists());
}

#[test]
fn write_after_disk_full_resumes_when_space_is_free() {
    let Some(dir) = small_disk(this_test!(), "16m") else {
        return;
    };
    goes_on(&dir, true);
}

#[test]
fn write_without_preallocation_succeeds() {
    let Some(dir) = small_disk(this_test!(), "16m") else {
        return;
    };
    goes_on(&dir, false);
}

#[test]
fn close_on_full_disk_succeeds() {
    let Some(dir) = small_disk(this_test!(), "16m") else {
        return;
    };
    let mut writer = SegmentWriter::new(&options(true)).unwrap();
    writer.open(&dir, "a").unwrap();
    let (wanted, _) = fill(&mut writer, &SIZES);
    let closed = writer.close(&vec![b' '; 1 << 20]).unwrap();
    assert!(std::fs::read(closed.data).unwrap() == wanted);
    assert_eq!(std::fs::metadata(closed.meta).unwrap().len(), 1 << 20);
}

#[test]
fn close_failed_for_space_is_repeatable() {
    let Some(dir) = small_disk(this_test!(), "16m") else {
        return;
    };
    let ballast = ballast(&dir);
    let mut writer = SegmentWriter::new(&options(false)).unwrap();
    writer.open(&dir, "a").unwrap();
    let (wanted, _) = fill(&mut writer, &[4_095]);
    let error = writer.close(b"{}").unwrap_err();
    assert!(matches!(error, SegmentError::Full { .. }), "{error}");
    assert!(!dir.join("a.sigmf-data").exists() && !dir.join("a.sigmf-meta").exists());
    std::fs::remove_file(ballast).unwrap();
    let closed = writer.close(b"{}").unwrap();
    assert!(std::fs::read(closed.data).unwrap() == wanted);
}

#[test]
fn failed_write_keeps_prefix_that_truncates_to_records() {
    let Some(dir) = small_disk(this_test!(), "16m") else {
        return;
    };
    let mut writer = SegmentWriter::new(&options(false)).unwrap();
    writer.open(&dir, "a").unwrap();
    let (wanted, _) = fill(&mut writer, &SIZES);
    // The durable data ends inside one of the last buffers, so truncate well before its end.
    let keep = wanted.len() - (1 << 20);
    writer.truncate(keep as u64).unwrap();
    let closed = writer.close(b"{}").unwrap();
    assert!(std::fs::read(&closed.data).unwrap() == wanted[..keep]);
    writer.open(&dir, "b").unwrap();
    let (wanted, _) = fill(&mut writer, &SIZES);
    let partial = writer.keep_partial().unwrap();
    assert_eq!(partial, dir.join("b.sigmf-data.partial"));
    let kept = std::fs::read(partial).unwrap();
    assert!(wanted.starts_with(&kept) && kept.len() + 3 * (64 << 10) >= wanted.len());
}
