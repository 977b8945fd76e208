//! Reads files below a directory that stands for `/`, so that tests can provide their own machine.

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

    /// Whether this is the running machine, which system calls can query, too.
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

    /// Reads the file; `None` if it cannot be read.
    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(self.at(path)).ok()
    }

    /// Reads the file as text without surrounding white space; `None` if it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        Some(
            String::from_utf8_lossy(&self.bytes(path)?)
                .trim()
                .to_owned(),
        )
    }

    /// Parses the file's only value.
    pub(super) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Names in a directory, sorted; empty if it cannot be read.
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

    /// Returns the text that follows `name` on the line of `path` that begins with it.
    pub(super) fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.trim().to_owned())
    }
}

/// Parses a Linux list such as `0-3,8`; entries that are not numbers or too large are skipped.
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

    /// Creates a machine from `files`; the directory exists as long as the first value.
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
