//! Memory of this machine that a pipeline can allocate and lock, from files of Linux.

use std::fs;
use std::path::Path;

const CGROUPS: &str = "/sys/fs/cgroup";
const MEMINFO: &str = "/proc/meminfo";
/// Bit number of `CAP_IPC_LOCK` in the capability masks of Linux.
const CAP_IPC_LOCK: u32 = 14;

/// Host memory that this process can allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Number of bytes that can be allocated without swapping.
    pub available: u64,
    /// The file that sets this limit.
    pub limited_by: String,
    /// Number of free bytes in Linux's pool of huge pages, which `available` does not contain.
    pub huge_pool: u64,
    /// Number of bytes that this process may lock; `None` if the number is not limited.
    pub lockable: Option<u64>,
}

impl HostMemory {
    /// Reads the memory below `root`, which is `/` except in tests; `None` if Linux does not report it.
    pub fn read(root: &Path) -> Option<Self> {
        let files = Files(root);
        let meminfo = files.text(MEMINFO)?;
        let kib = |name| number(&meminfo, name);
        let machine = kib("MemAvailable:")?.saturating_mul(1024);
        let pages = kib("HugePages_Free:").zip(kib("Hugepagesize:"));
        let pool = pages.map_or(0, |(free, size)| free.saturating_mul(size) << 10);
        let limit = files.cgroup_limit().filter(|(bytes, _)| *bytes < machine);
        let (available, limited_by) = limit.unwrap_or_else(|| (machine, MEMINFO.to_owned()));
        Some(Self {
            available,
            limited_by,
            huge_pool: pool,
            lockable: files.lockable(),
        })
    }
}

/// Returns the directories of a process's control groups for `controller`, from the innermost to the root group.
/// `text` is the content of `/proc/self/cgroup`, versions 1 and 2.
pub fn cgroup_directories(text: &str, controller: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The format of each line is hierarchy:controllers:path. In version 2, the controllers are empty.
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let mounts = if controllers.is_empty() {
            vec![CGROUPS.to_owned(), format!("{CGROUPS}/unified")]
        } else if controllers.split(',').any(|name| name == controller) {
            vec![
                format!("{CGROUPS}/{controllers}"),
                format!("{CGROUPS}/{controller}"),
            ]
        } else {
            continue;
        };
        for mount in mounts {
            let mut path = path.trim_matches('/');
            loop {
                found.push(if path.is_empty() {
                    mount.clone()
                } else {
                    format!("{mount}/{path}")
                });
                if path.is_empty() {
                    break;
                }
                path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            }
        }
    }
    found
}

/// Returns the first number of the line of `text` that begins with `name`.
fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The files below a root directory.
struct Files<'a>(&'a Path);

impl Files<'_> {
    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.0.join(path.trim_start_matches('/'))).ok()
    }

    fn value(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// Returns the smallest number of bytes that a control group still permits, and the file with its limit.
    fn cgroup_limit(&self) -> Option<(u64, String)> {
        let text = self.text("/proc/self/cgroup").unwrap_or_default();
        let directories = cgroup_directories(&text, "memory");
        let left = directories.iter().filter_map(|directory| {
            let at = |name: &str| format!("{directory}/{name}");
            let names = [
                (
                    "memory.max",
                    "memory.current",
                    ["inactive_file ", "active_file "],
                ),
                (
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    ["total_inactive_file ", "total_active_file "],
                ),
            ];
            names.into_iter().find_map(|(limit, used, cached)| {
                let bytes = self.value(&at(limit))?;
                let used = self.value(&at(used)).unwrap_or(0);
                // Linux frees cached pages of files when a group reaches its limit.
                let stat = self.text(&at("memory.stat")).unwrap_or_default();
                let cached: u64 = cached.iter().filter_map(|name| number(&stat, name)).sum();
                let left = bytes.saturating_sub(used.saturating_sub(cached));
                Some((left, at(limit)))
            })
        });
        left.min()
    }

    fn lockable(&self) -> Option<u64> {
        let status = self.text("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // In a user namespace, Linux shows the capability, but it has no effect. Only the initial namespace maps all users.
        let map = self.text("/proc/self/uid_map").unwrap_or_default();
        let is_initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
        if is_initial && mask.is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1) {
            return None;
        }
        number(&self.text("/proc/self/limits")?, "Max locked memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(files: &[(&str, &str)]) -> Option<HostMemory> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        HostMemory::read(dir.path())
    }

    const MACHINE: (&str, &str) = (
        "proc/meminfo",
        "MemTotal: 99 kB\nMemAvailable:  8388608 kB\nHugePages_Free: 3\nHugepagesize: 2048 kB\n",
    );

    #[test]
    fn available_memory_is_that_of_machine_and_pool() {
        let found = memory(&[MACHINE]).unwrap();
        assert_eq!((found.available, found.huge_pool), (8 << 30, 6 << 20));
        assert_eq!((&*found.limited_by, found.lockable), (MEMINFO, None));
        assert_eq!(memory(&[]), None);
    }

    #[test]
    fn control_groups_limit_what_they_do_not_use_yet() {
        let found = memory(&[
            MACHINE,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "1000000\n"),
            ("sys/fs/cgroup/a/memory.current", "900000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 200000\ninactive_file 400000\nactive_file 300000\n",
            ),
        ])
        .unwrap();
        assert_eq!(found.available, 800_000);
        assert_eq!(found.limited_by, "/sys/fs/cgroup/a/memory.max");
        let first = memory(&[
            MACHINE,
            ("proc/self/cgroup", "4:memory:/box\n"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "5000"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "6000"),
        ]);
        assert_eq!(first.unwrap().available, 0);
    }

    #[test]
    fn lockable_memory_depends_on_limit_and_capability() {
        let all = "0 0 4294967295\n";
        let locked = |soft: &str, capabilities: &str, map: &str| {
            let limits =
                format!("Limit Soft Hard Units\nMax locked memory    {soft}   {soft}  bytes\n");
            let status = format!("CapEff:\t{capabilities}\n");
            let files = [
                MACHINE,
                ("proc/self/limits", &*limits),
                ("proc/self/status", &*status),
                ("proc/self/uid_map", map),
            ];
            memory(&files).unwrap().lockable
        };
        assert_eq!(locked("8388608", "0", all), Some(8_388_608));
        assert_eq!(locked("8388608", "0000000000004000", all), None);
        assert_eq!(
            locked("8388608", "0000000000004000", "0 1000 1\n"),
            Some(8_388_608)
        );
        assert_eq!(locked("unlimited", "0", all), None);
    }
}
