//! Reads files below a directory that represents `/`, so that tests can provide their own machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A machine's file system.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Returns whether the file system is that of the running machine, which can also be queried with system calls.
    pub(super) fn is_real(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// Maps the absolute `path` to a path below the root.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// Reads the file; returns `None` if it cannot be read.
    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(self.at(path)).ok()
    }

    /// Reads the file as text without surrounding white space; returns `None` if it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        Some(
            String::from_utf8_lossy(&self.bytes(path)?)
                .trim()
                .to_owned(),
        )
    }

    /// Parses the text of the file as one value; returns `None` if that fails.
    pub(super) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Returns the sorted names in a directory; an empty list if the directory cannot be read.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at(path)) else {
            return Vec::new();
        };
        let mut names: Vec<_> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns the rest of the line that begins with `name` in the file `path`.
    pub(super) fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.trim().to_owned())
    }
}

/// Parses a Linux list such as `0-3,8`. Skips entries that are not numbers or are too large.
pub(super) fn list(text: &str) -> Vec<usize> {
    const MAX_NUMBER: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            numbers.extend(first..=last.min(MAX_NUMBER));
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates a machine with the files `files`. Dropping the first value removes the directory.
    pub(in crate::doctor) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        for (path, text) in files {
            let path = root.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (dir, root)
    }

    #[test]
    fn absolute_paths_resolve_below_root() {
        let (dir, root) = machine(&[
            ("/proc/swaps", " 5\n"),
            ("/proc/status", "A:\t1 kB\nB:\t2\n"),
        ]);
        assert_eq!(root.at("/proc/swaps"), dir.path().join("proc/swaps"));
        assert_eq!(root.value::<u32>("/proc/swaps"), Some(5));
        assert_eq!(root.value::<u32>("/proc/none"), None);
        assert_eq!(root.field("/proc/status", "B:").as_deref(), Some("2"));
        assert_eq!(root.names("/proc"), ["status", "swaps"]);
        assert!(!root.is_real() && Root::new(Path::new("/")).is_real());
    }

    #[test]
    fn linux_range_lists_are_parsed() {
        assert_eq!(list("0-2,8"), [0, 1, 2, 8]);
        assert_eq!(list("3"), [3]);
        for odd in [
            "",
            "x",
            "3-",
            "5-2",
            "18446744073709551615-18446744073709551616",
        ] {
            assert!(list(odd).is_empty(), "{odd}");
        }
        assert!(list("0-18446744073709551615").len() <= (1 << 16) + 1);
    }
}
