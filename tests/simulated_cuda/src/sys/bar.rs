//! The BAR of another PCI device, which contains the memory of the simulated devices if the option `bar` is set. A real
//! device can then access this memory.

use crate::faults::OPTIONS;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

/// Page size of a GPU in bytes; the size of each allocation is a multiple of this size.
const PAGE: usize = 64 << 10;

/// The BAR, opened as a file.
#[derive(Debug)]
pub struct Bar {
    file: OwnedFd,
    bytes: usize,
    /// Offset and size in bytes of each allocated piece.
    taken: Mutex<BTreeMap<usize, usize>>,
}

/// The BAR of the option `bar`. Panics if it cannot be opened, because a test must not run with a different
/// configuration than it requested.
pub static BAR: LazyLock<Option<Bar>> = LazyLock::new(|| {
    let path = OPTIONS.bar.as_deref()?;
    let bar = Bar::open(path);
    Some(bar.unwrap_or_else(|error| panic!("DAQ_SIMULATED_CUDA: {}: {error}", path.display())))
});

impl Bar {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        Ok(Self {
            file: file.into(),
            bytes,
            taken: Mutex::default(),
        })
    }

    /// Returns a descriptor of the file, and the offset of `bytes` free bytes in it.
    pub fn take(&self, bytes: usize) -> Option<(OwnedFd, usize)> {
        let file = self.file.try_clone().ok()?;
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let mut taken = super::lock(&self.taken);
        let mut begin = 0;
        for (other, length) in &*taken {
            if other - begin >= bytes {
                break;
            }
            begin = other + length;
        }
        if self.bytes.checked_sub(begin)? < bytes {
            return None;
        }
        taken.insert(begin, bytes);
        Some((file, begin))
    }

    /// Frees the piece at offset `begin`.
    pub fn give(&self, begin: usize) {
        super::lock(&self.taken).remove(&begin);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

    use super::*;

    #[test]
    fn bar_ranges_do_not_overlap_and_are_reused() {
        let file = std::env::temp_dir().join(format!("daq-bar-{}", std::process::id()));
        File::create(&file).unwrap().set_len(4 << 16).unwrap();
        let bar = Bar::open(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let take = |bytes| bar.take(bytes).map(|(_, begin)| begin);
        assert_eq!(take(1), Some(0));
        assert_eq!(take(PAGE + 1), Some(PAGE));
        assert_eq!(take(PAGE), Some(3 * PAGE));
        assert_eq!(take(1), None);
        bar.give(PAGE);
        assert_eq!(take(3 * PAGE), None);
        assert_eq!(take(2 * PAGE), Some(PAGE));
        bar.give(0);
        assert_eq!(take(PAGE), Some(0));
        assert_eq!(take(usize::MAX), None);
    }
}
