//! Checks memory: lock limit, huge pages, swap, and available memory.

use super::cgroup;
use super::root::Root;
use super::{Finding, Verdict};
use daq_core::units::ByteSize;

const GROUP: &str = "memory";
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
    vec![
        memlock(root),
        huge_pages(root),
        transparent(root),
        swap(root),
        available(root),
    ]
}

fn memlock(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "memlock", LIMITS);
    let Some(limit) = root.field(LIMITS, "Max locked memory") else {
        return finding;
    };
    let soft = limit.split_whitespace().next().unwrap_or_default();
    let capable = root
        .field("/proc/self/status", "CapEff:")
        .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
        .is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1);
    // In a user namespace, Linux shows the capability, but it has no effect. Only the initial namespace maps all users.
    let initial = root
        .text("/proc/self/uid_map")
        .is_some_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    let privileged = capable && initial;
    let Some(bytes) = soft.parse::<u64>().ok().filter(|_| soft != "unlimited") else {
        return if soft == "unlimited" {
            finding.read(Verdict::Ok, soft)
        } else {
            finding
        };
    };
    let shown = ByteSize(bytes).to_string();
    if privileged {
        finding.read(
            Verdict::Ok,
            format!("{shown}, but CAP_IPC_LOCK removes the limit"),
        )
    } else if bytes >= LOCKED_WANTED {
        finding
            .read(Verdict::Ok, shown)
            .why("rings beyond this limit are not locked in RAM")
    } else {
        finding
            .read(Verdict::Warn, shown)
            .why("rings beyond this limit are not locked in RAM and cannot be registered with devices")
            .fix("sudo prlimit --pid $$ --memlock=unlimited:unlimited  # for this shell; LimitMEMLOCK=infinity in a systemd unit")
    }
}

/// Returns a field of `/proc/meminfo` in KiB.
fn meminfo(root: &Root, name: &str) -> Option<u64> {
    root.field(MEMINFO, name)?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn huge_pages(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "hugepages", MEMINFO);
    let (Some(total), Some(size)) = (
        meminfo(root, "HugePages_Total:"),
        meminfo(root, "Hugepagesize:"),
    ) else {
        return finding;
    };
    let free = meminfo(root, "HugePages_Free:").unwrap_or(0);
    let size = ByteSize(size.saturating_mul(1024));
    let fix = "sudo sysctl -w vm.nr_hugepages=256";
    if total == 0 {
        let without = "rings use normal pages, or transparent hugepages if enabled";
        finding
            .read(Verdict::Ok, format!("none reserved, {size} each"))
            .why(without)
            .fix(fix)
    } else if free == 0 {
        let used = format!("all {total} in use, {size} each");
        finding
            .read(Verdict::Warn, used)
            .why("no huge page is free for rings")
            .fix(format!(
                "sudo sysctl -w vm.nr_hugepages={}",
                total.saturating_add(256)
            ))
    } else {
        finding.read(Verdict::Ok, format!("{free} of {total} free, {size} each"))
    }
}

fn transparent(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "transparent hugepages", THP);
    let Some(text) = root.text(THP) else {
        return finding;
    };
    let chosen = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        Some(chosen @ ("always" | "madvise")) => finding.read(Verdict::Ok, chosen),
        Some(chosen) => finding
            .read(Verdict::Warn, chosen)
            .why("large rings cause more TLB misses")
            .fix(format!("echo madvise | sudo tee {THP}")),
        None => finding,
    }
}

fn swap(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "swap", SWAPS);
    let Some(text) = root.text(SWAPS) else {
        return finding;
    };
    // The columns are file, type, size, used and priority. Sizes are in KiB.
    let column = |line: &str, at: usize| line.split_whitespace().nth(at)?.parse::<u64>().ok();
    let areas: Vec<_> = text
        .lines()
        .skip(1)
        .filter_map(|line| column(line, 2).zip(column(line, 3)))
        .collect();
    let total: u64 = areas.iter().fold(0, |sum, area| sum.saturating_add(area.0));
    let used: u64 = areas.iter().fold(0, |sum, area| sum.saturating_add(area.1));
    if areas.is_empty() {
        finding.read(Verdict::Ok, "none")
    } else if used == 0 {
        finding.read(
            Verdict::Ok,
            format!("{}, unused", about(total.saturating_mul(1024))),
        )
    } else {
        let used = about(used.saturating_mul(1024));
        finding
            .read(Verdict::Warn, format!("{used} in use"))
            .why("rings that are not locked may be swapped out, which loses packets")
            .fix("sudo swapoff -a")
    }
}

fn available(root: &Root) -> Finding {
    let limit = cgroup::memory_limit(root);
    let machine = meminfo(root, "MemAvailable:").map(|kib| kib.saturating_mul(1024));
    let (bytes, from) = match (machine, limit) {
        (Some(machine), Some((limit, from))) if limit < machine => (limit, from),
        (Some(machine), _) => (machine, MEMINFO.to_owned()),
        (None, Some((limit, from))) => (limit, from),
        (None, None) => return Finding::new(GROUP, "available", MEMINFO),
    };
    let limited = from != MEMINFO;
    let finding = Finding::new(GROUP, "available", from);
    let verdict = if bytes < MIN_AVAILABLE {
        Verdict::Bad
    } else if bytes < RECOMMENDED_AVAILABLE {
        Verdict::Warn
    } else {
        Verdict::Ok
    };
    let finding = finding.read(verdict, about(bytes));
    if verdict == Verdict::Ok {
        finding
    } else if limited {
        finding
            .why("the control group limits the memory; `daq plan` prints the memory that a pipeline needs")
            .fix("sudo systemctl set-property UNIT MemoryMax=infinity  # or: docker update --memory SIZE CONTAINER")
    } else {
        finding
            .why("`daq plan` prints the memory that a pipeline needs")
            .fix("ps aux --sort=-rss | head  # then stop large processes")
    }
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
    use super::super::root::tests::machine;
    use super::*;
    use Verdict::{Bad, Ok, Unknown, Warn};

    #[test]
    fn memlock_limit_is_compared_with_ring_memory() {
        let limits = |soft| {
            format!(
                "Limit  Soft  Hard  Units\nMax locked memory         {soft}     {soft}   bytes\n"
            )
        };
        let (all, some) = ("         0          0 4294967295\n", "0 100000 65536\n");
        for (soft, capabilities, map, verdict) in [
            ("8388608", "0", all, Warn),
            ("8388608", "0000000000004000", all, Ok),
            ("8388608", "0000000000004000", some, Warn),
            ("67108864", "0", all, Ok),
            ("unlimited", "0", all, Ok),
            ("nonsense", "0", all, Unknown),
        ] {
            let status = format!("CapEff:\t{capabilities}\n");
            let (_dir, root) = machine(&[
                (LIMITS, &limits(soft)),
                ("/proc/self/status", &status),
                ("/proc/self/uid_map", map),
            ]);
            let found = memlock(&root);
            assert_eq!(found.verdict, verdict, "{soft} {capabilities}");
            assert_eq!(found.fix.is_some(), verdict == Warn);
        }
        let (_dir, root) = machine(&[(LIMITS, &limits("8388608"))]);
        assert_eq!(memlock(&root).read, "8 MiB");
        assert_eq!(memlock(&machine(&[]).1).verdict, Unknown);
    }

    #[test]
    fn huge_pages_are_counted() {
        let meminfo = |total, free| {
            format!("HugePages_Total: {total}\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n")
        };
        for (total, free, verdict, read) in [
            (0, 0, Ok, "none reserved, 2 MiB each"),
            (256, 200, Ok, "200 of 256 free, 2 MiB each"),
            (256, 0, Warn, "all 256 in use, 2 MiB each"),
        ] {
            let (_dir, root) = machine(&[(MEMINFO, &meminfo(total, free))]);
            let found = huge_pages(&root);
            assert_eq!((found.verdict, found.read.as_str()), (verdict, read));
        }
        assert_eq!(huge_pages(&machine(&[]).1).verdict, Unknown);
    }

    #[test]
    fn transparent_huge_pages_disabled_is_reported() {
        for (text, verdict) in [
            ("always [madvise] never", Ok),
            ("[always] madvise never", Ok),
            ("always madvise [never]", Warn),
            ("", Unknown),
        ] {
            let (_dir, root) = machine(&[(THP, text)]);
            assert_eq!(transparent(&root).verdict, verdict, "{text}");
        }
    }

    #[test]
    fn swap_in_use_is_warning() {
        let head = "Filename Type Size Used Priority\n";
        for (area, verdict, read) in [
            ("", Ok, "none"),
            ("/dev/sda2 partition 2097148 0 -2\n", Ok, "2.0 GiB, unused"),
            (
                "/dev/sda2 partition 2097148 1024 -2\n",
                Warn,
                "1.0 MiB in use",
            ),
        ] {
            let (_dir, root) = machine(&[(SWAPS, &format!("{head}{area}"))]);
            let found = swap(&root);
            assert_eq!((found.verdict, found.read.as_str()), (verdict, read));
        }
    }

    #[test]
    fn insufficient_memory_is_bad() {
        for (kib, verdict) in [(8 << 20, Ok), (512 << 10, Warn), (32 << 10, Bad)] {
            let (_dir, root) = machine(&[(MEMINFO, &format!("MemAvailable: {kib} kB\n"))]);
            assert_eq!(available(&root).verdict, verdict, "{kib} KiB");
        }
        let (_dir, root) = machine(&[
            (MEMINFO, "MemAvailable: 8388608 kB\n"),
            ("/proc/self/cgroup", "0::/box\n"),
            ("/sys/fs/cgroup/box/memory.max", "536870912\n"),
        ]);
        let found = available(&root);
        assert_eq!((found.verdict, found.read.as_str()), (Warn, "512.0 MiB"));
        assert_eq!(found.from, "/sys/fs/cgroup/box/memory.max");
    }
}
