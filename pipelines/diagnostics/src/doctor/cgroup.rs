//! Reads the limits of this process's control groups, version 1 and 2.

use super::root::Root;
use daq_core::topology::cgroup_directories;

/// Returns the directories of this process's control groups for `controller`, from the innermost to the root group.
fn directories(root: &Root, controller: &str) -> Vec<String> {
    let text = root.text("/proc/self/cgroup").unwrap_or_default();
    cgroup_directories(&text, controller)
}

/// Returns the smallest memory limit in bytes, and the file that sets this limit. Returns `None` if memory is not
/// limited.
pub(super) fn memory_limit(root: &Root) -> Option<(u64, String)> {
    directories(root, "memory")
        .iter()
        .flat_map(|directory| {
            ["memory.max", "memory.limit_in_bytes"].map(|name| format!("{directory}/{name}"))
        })
        .filter_map(|file| Some((root.value::<u64>(&file)?, file)))
        // Version 1 encodes "no limit" as the largest multiple of a page.
        .filter(|(limit, _)| *limit < 1 << 62)
        .min()
}

/// Returns the smallest CPU quota in cores, and the file that sets this quota. Returns `None` if no quota is set.
pub(super) fn cpu_quota(root: &Root) -> Option<(f64, String)> {
    let mut min: Option<(f64, String)> = None;
    for directory in directories(root, "cpu") {
        let second = format!("{directory}/cpu.max");
        let first = format!("{directory}/cpu.cfs_quota_us");
        let quota = if let Some(text) = root.text(&second) {
            let mut words = text.split_whitespace().map(str::parse::<f64>);
            words
                .next()
                .and_then(Result::ok)
                .zip(words.next().and_then(Result::ok))
                .map(|pair| (pair, second))
        } else {
            let period = root.value::<f64>(&format!("{directory}/cpu.cfs_period_us"));
            root.value::<f64>(&first)
                .zip(period)
                .map(|pair| (pair, first))
        };
        // Version 1 encodes "no quota" as −1.
        if let Some(((quota, period), file)) = quota
            && quota > 0.0
            && period > 0.0
            && min
                .as_ref()
                .is_none_or(|(cores, _)| quota / period < *cores)
        {
            min = Some((quota / period, file));
        }
    }
    min
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::machine;
    use super::*;

    #[test]
    fn cgroup_limit_is_minimum_of_ancestors() {
        let (_dir, root) = machine(&[
            ("/proc/self/cgroup", "0::/system.slice/daq.service\n"),
            (
                "/sys/fs/cgroup/system.slice/daq.service/cpu.max",
                "max 100000\n",
            ),
            ("/sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n"),
            (
                "/sys/fs/cgroup/system.slice/daq.service/memory.max",
                "max\n",
            ),
            ("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
        ]);
        assert_eq!(
            cpu_quota(&root),
            Some((1.5, "/sys/fs/cgroup/system.slice/cpu.max".to_owned()))
        );
        assert_eq!(
            memory_limit(&root),
            Some((1 << 30, "/sys/fs/cgroup/system.slice/memory.max".to_owned()))
        );
    }

    #[test]
    fn cgroup_version_1_is_read() {
        let (_dir, root) = machine(&[
            ("/proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            (
                "/sys/fs/cgroup/memory/box/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(cpu_quota(&root).map(|(cores, _)| cores), Some(0.5));
        assert_eq!(memory_limit(&root), None);
    }

    #[test]
    fn cgroup_absent_has_no_limit() {
        let (_dir, root) = machine(&[
            ("/proc/self/cgroup", "garbage\n0::/\n"),
            ("/sys/fs/cgroup/cpu.max", "max 1\n"),
        ]);
        assert_eq!(cpu_quota(&root), None);
        assert_eq!(memory_limit(&root), None);
    }
}
