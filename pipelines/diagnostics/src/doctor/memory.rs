//! Checks memory: lock limit, huge pages, swap, and available memory.

use super::cgroup;
use super::check::{Finding, Judgement, bad, check, ok, table, warn};
use super::root::Root;
use daq_core::units::ByteSize;

const LIMITS: &str = "/proc/self/limits";
const MEMINFO: &str = "/proc/meminfo";
const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const SWAPS: &str = "/proc/swaps";
const MIB: u64 = 1 << 20;
/// Lock limit in bytes that the rings of a small pipeline need: 64 slots of 1 MiB.
const LOCKED_WANTED: u64 = 64 * MIB;
/// Minimum available memory in bytes. Less memory is not sufficient for small rings and the socket buffers of Linux.
const MIN_AVAILABLE: u64 = 64 * MIB;
const RECOMMENDED_AVAILABLE: u64 = 1024 * MIB;
/// Bit number of `CAP_IPC_LOCK` in the capability masks of Linux.
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    let checks = [
        check("memlock", LIMITS, memlock),
        check("hugepages", MEMINFO, huge_pages),
        check("transparent hugepages", THP, transparent),
        check("swap", SWAPS, swap),
        check("available", MEMINFO, available),
    ];
    table("memory", "", root, &checks)
}

fn memlock(root: &Root) -> Option<Judgement> {
    let limit = root.field(LIMITS, "Max locked memory")?;
    let soft = limit.split_whitespace().next()?;
    if soft == "unlimited" {
        return Some(ok(soft));
    }
    let bytes: u64 = soft.parse().ok()?;
    let shown = ByteSize(bytes).to_string();
    Some(if has_ipc_lock(root) {
        ok(format!("{shown}, but CAP_IPC_LOCK removes the limit"))
    } else if bytes >= LOCKED_WANTED {
        ok(shown).why("rings beyond this limit are not locked in RAM")
    } else {
        warn(
            shown,
            "rings beyond this limit are not locked in RAM and cannot be registered with devices",
            "sudo prlimit --pid $$ --memlock=unlimited:unlimited  # for this shell; LimitMEMLOCK=infinity in a systemd unit",
        )
    })
}

/// Returns whether this process may lock any amount of memory.
fn has_ipc_lock(root: &Root) -> bool {
    let mask = root.field("/proc/self/status", "CapEff:");
    let is_capable = mask
        .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
        .is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1);
    // In a user namespace, Linux shows the capability, but it has no effect. Only the initial namespace maps all users.
    let is_initial = root
        .text("/proc/self/uid_map")
        .is_some_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    is_capable && is_initial
}

/// Returns a field of `/proc/meminfo` in KiB.
fn meminfo(root: &Root, name: &str) -> Option<u64> {
    root.field(MEMINFO, name)?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn huge_pages(root: &Root) -> Option<Judgement> {
    let total = meminfo(root, "HugePages_Total:")?;
    let size = ByteSize(meminfo(root, "Hugepagesize:")?.saturating_mul(1024));
    let free = meminfo(root, "HugePages_Free:").unwrap_or(0);
    let set = |pages: u64| format!("sudo sysctl -w vm.nr_hugepages={pages}");
    Some(match (total, free) {
        (0, _) => ok(format!("none reserved, {size} each"))
            .why("rings use normal pages, or transparent hugepages if enabled")
            .fix(set(256)),
        (_, 0) => warn(
            format!("all {total} in use, {size} each"),
            "no huge page is free for rings",
            set(total.saturating_add(256)),
        ),
        _ => ok(format!("{free} of {total} free, {size} each")),
    })
}

fn transparent(root: &Root) -> Option<Judgement> {
    let text = root.text(THP)?;
    let mut words = text.split_whitespace();
    let chosen = words.find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))?;
    Some(match chosen {
        "always" | "madvise" => ok(chosen),
        _ => warn(
            chosen,
            "large rings cause more TLB misses",
            format!("echo madvise | sudo tee {THP}"),
        ),
    })
}

fn swap(root: &Root) -> Option<Judgement> {
    let text = root.text(SWAPS)?;
    // The columns are file, type, size, used and priority. Sizes are in KiB.
    let column = |line: &str, at: usize| line.split_whitespace().nth(at)?.parse::<u64>().ok();
    let areas: Vec<_> = text
        .lines()
        .skip(1)
        .filter_map(|line| column(line, 2).zip(column(line, 3)))
        .collect();
    let total: u64 = areas.iter().fold(0, |sum, area| sum.saturating_add(area.0));
    let used: u64 = areas.iter().fold(0, |sum, area| sum.saturating_add(area.1));
    let size = |kib: u64| about(kib.saturating_mul(1024));
    Some(match used {
        _ if areas.is_empty() => ok("none"),
        0 => ok(format!("{}, unused", size(total))),
        _ => warn(
            format!("{} in use", size(used)),
            "rings that are not locked may be swapped out, which loses packets",
            "sudo swapoff -a",
        ),
    })
}

fn available(root: &Root) -> Option<Judgement> {
    let machine = meminfo(root, "MemAvailable:").map(|kib| kib.saturating_mul(1024));
    let limit = cgroup::memory_limit(root);
    let limit = limit.filter(|(limit, _)| machine.is_none_or(|machine| *limit < machine));
    let (bytes, why, fix) = match &limit {
        Some((limit, _)) => (
            *limit,
            "the control group limits the memory; `daq plan` prints the memory that a pipeline needs",
            "sudo systemctl set-property UNIT MemoryMax=infinity  # or: docker update --memory SIZE CONTAINER",
        ),
        None => (
            machine?,
            "`daq plan` prints the memory that a pipeline needs",
            "ps aux --sort=-rss | head  # then stop large processes",
        ),
    };
    let read = about(bytes);
    let judged = match bytes {
        ..MIN_AVAILABLE => bad(read, why, fix),
        MIN_AVAILABLE..RECOMMENDED_AVAILABLE => warn(read, why, fix),
        _ => ok(read),
    };
    Some(judged.from(limit.map_or_else(|| MEMINFO.to_owned(), |(_, file)| file)))
}

/// Formats a size in bytes with one decimal.
pub(super) fn about(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::judged;
    use super::*;
    use crate::doctor::Status::{Ok, Problem, Unknown, Warning};

    #[test]
    fn memlock_limit_is_compared_with_ring_memory() {
        let (all, some) = ("         0          0 4294967295\n", "0 100000 65536\n");
        let memlock = |soft: &str, capabilities: &str, map: &str| {
            let limits = format!(
                "Limit  Soft  Hard  Units\nMax locked memory         {soft}     {soft}   bytes\n"
            );
            let status = format!("CapEff:\t{capabilities}\n");
            let files = [
                (LIMITS, &*limits),
                ("/proc/self/status", &status),
                ("/proc/self/uid_map", map),
            ];
            judged(examine, &files, "memlock")
        };
        for (soft, capabilities, map, status) in [
            ("8388608", "0", all, Warning),
            ("8388608", "0000000000004000", all, Ok),
            ("8388608", "0000000000004000", some, Warning),
            ("67108864", "0", all, Ok),
            ("unlimited", "0", all, Ok),
            ("nonsense", "0", all, Unknown),
        ] {
            let found = memlock(soft, capabilities, map);
            assert_eq!(found.status, status, "{soft} {capabilities}");
            assert_eq!(found.fix.is_some(), status == Warning);
        }
        assert_eq!(memlock("8388608", "", "").read, "8 MiB");
        assert_eq!(judged(examine, &[], "memlock").status, Unknown);
    }

    #[test]
    fn huge_pages_are_counted() {
        for (total, free, status, read) in [
            (0, 0, Ok, "none reserved, 2 MiB each"),
            (256, 200, Ok, "200 of 256 free, 2 MiB each"),
            (256, 0, Warning, "all 256 in use, 2 MiB each"),
        ] {
            let meminfo = format!(
                "HugePages_Total: {total}\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n"
            );
            let found = judged(examine, &[(MEMINFO, &meminfo)], "hugepages");
            assert_eq!(found.summary(), (status, read));
        }
        assert_eq!(judged(examine, &[], "hugepages").status, Unknown);
    }

    #[test]
    fn transparent_huge_pages_disabled_is_reported() {
        for (text, status) in [
            ("always [madvise] never", Ok),
            ("[always] madvise never", Ok),
            ("always madvise [never]", Warning),
            ("", Unknown),
        ] {
            let found = judged(examine, &[(THP, text)], "transparent hugepages");
            assert_eq!(found.status, status, "{text}");
        }
    }

    #[test]
    fn swap_in_use_is_warning() {
        for (area, status, read) in [
            ("", Ok, "none"),
            ("/dev/sda2 partition 2097148 0 -2\n", Ok, "2.0 GiB, unused"),
            (
                "/dev/sda2 partition 2097148 1024 -2\n",
                Warning,
                "1.0 MiB in use",
            ),
        ] {
            let swaps = format!("Filename Type Size Used Priority\n{area}");
            let found = judged(examine, &[(SWAPS, &swaps)], "swap");
            assert_eq!(found.summary(), (status, read));
        }
    }

    #[test]
    fn insufficient_memory_is_bad() {
        for (kib, status) in [(8 << 20, Ok), (512 << 10, Warning), (32 << 10, Problem)] {
            let meminfo = format!("MemAvailable: {kib} kB\n");
            let found = judged(examine, &[(MEMINFO, &meminfo)], "available");
            assert_eq!(found.status, status, "{kib} KiB");
        }
        let files = [
            (MEMINFO, "MemAvailable: 8388608 kB\n"),
            ("/proc/self/cgroup", "0::/box\n"),
            ("/sys/fs/cgroup/box/memory.max", "536870912\n"),
        ];
        let found = judged(examine, &files, "available");
        assert_eq!(found.summary(), (Warning, "512.0 MiB"));
        assert_eq!(found.from, "/sys/fs/cgroup/box/memory.max");
    }
}
