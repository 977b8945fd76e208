//! Checks the processor: cores, clock frequency, idle states, quotas and NUMA.

use super::cgroup;
use super::root::{Root, list};
use super::{Finding, Verdict};
use std::collections::BTreeSet;

const GROUP: &str = "processor";
const CPU: &str = "/sys/devices/system/cpu";
const STATUS: &str = "/proc/self/status";
const NODES: &str = "/sys/devices/system/node/online";
const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// Maximum wake-up time in µs. In this time, 100 Gbit/s fill one third of a buffer of 4 MiB.
const WAKE_US: u64 = 100;

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    vec![
        cores(root),
        isolated(root),
        quota(root),
        governor(root),
        idle(root),
        numa(root),
    ]
}

fn cores(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "cores", STATUS);
    let Some(allowed) = root.field(STATUS, "Cpus_allowed_list:") else {
        return finding;
    };
    let count = list(&allowed).len();
    let online = root
        .text(&format!("{CPU}/online"))
        .map_or(count, |text| list(&text).len());
    let read = if count < online {
        format!("{count} of {online}: {allowed}")
    } else {
        format!("{count}: {allowed}")
    };
    match count {
        0 => finding,
        1 => finding
            .read(Verdict::Warn, read)
            .why("sources, kernels and sinks share one core")
            .fix("taskset -cp 0-$(($(nproc --all) - 1)) $$  # for this shell; AllowedCPUs= in a systemd unit"),
        _ => finding.read(Verdict::Ok, read),
    }
}

fn isolated(root: &Root) -> Finding {
    let path = format!("{CPU}/isolated");
    let finding = Finding::new(GROUP, "isolated cores", path.as_str());
    match root.text(&path) {
        None => finding,
        Some(cores) if cores.is_empty() => finding
            .read(Verdict::Ok, "none")
            .why("needed only for the lowest latencies"),
        Some(cores) => finding
            .read(Verdict::Ok, cores)
            .why("the Linux scheduler does not use these cores; pin data threads to them"),
    }
}

fn quota(root: &Root) -> Finding {
    match cgroup::cpu_quota(root) {
        None => Finding::new(GROUP, "processor quota", "/proc/self/cgroup").read(Verdict::Ok, "none"),
        Some((cores, file)) => Finding::new(GROUP, "processor quota", file)
            .read(Verdict::Warn, format!("{cores:.2} cores"))
            .why("data threads pause when they have used the quota of a period, so packets are lost")
            .fix("sudo systemctl set-property UNIT CPUQuota=  # or: docker update --cpu-quota -1 CONTAINER"),
    }
}

/// Returns the names of the cores' directories.
fn each_core(root: &Root) -> impl Iterator<Item = String> {
    let number = |name: &String| {
        name.strip_prefix("cpu")
            .is_some_and(|rest| rest.parse::<usize>().is_ok())
    };
    root.names(CPU).into_iter().filter(number)
}

fn governor(root: &Root) -> Finding {
    let pattern = format!("{CPU}/cpu*/cpufreq/scaling_governor");
    let finding = Finding::new(GROUP, "governor", pattern.as_str());
    let governors: BTreeSet<_> = each_core(root)
        .filter_map(|core| root.text(&format!("{CPU}/{core}/cpufreq/scaling_governor")))
        .collect();
    if governors.is_empty() {
        return if each_core(root).next().is_none() {
            finding
        } else {
            finding
                .read(Verdict::Ok, "none")
                .why("this machine does not support setting the clock frequency; this is normal in a virtual machine")
        };
    }
    let read = governors
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if governors.iter().all(|governor| governor == "performance") {
        finding.read(Verdict::Ok, read)
    } else {
        finding
            .read(Verdict::Warn, read)
            .why("cores reduce their clock between bursts, which delays the next burst")
            .fix(format!("echo performance | sudo tee {pattern}"))
    }
}

/// Reports the enabled idle state that has the longest wake-up time, over all cores.
fn idle(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "idle states", format!("{CPU}/cpu*/cpuidle"));
    if each_core(root).next().is_none() {
        return finding;
    }
    let mut deepest: Option<(u64, String)> = None;
    for core in each_core(root) {
        let directory = format!("{CPU}/{core}/cpuidle");
        for state in root.names(&directory) {
            let directory = format!("{directory}/{state}");
            if root.value::<u8>(&format!("{directory}/disable")) == Some(1) {
                continue;
            }
            let latency = root.value::<u64>(&format!("{directory}/latency"));
            let Some((latency, name)) = latency.zip(root.text(&format!("{directory}/name"))) else {
                continue;
            };
            if deepest.as_ref().is_none_or(|(max, _)| latency > *max) {
                deepest = Some((latency, name));
            }
        }
    }
    let Some((latency, name)) = deepest else {
        return finding
            .read(Verdict::Ok, "none")
            .why("this machine does not support setting idle states; this is normal in a virtual machine");
    };
    let read = format!("{name} wakes in {latency} us");
    if latency <= WAKE_US {
        finding.read(Verdict::Ok, read)
    } else {
        finding
            .read(Verdict::Warn, read)
            .why("the time to wake up a core delays the first packets of a burst")
            .fix(format!(
                "sudo cpupower idle-set -D {WAKE_US}  # package linux-cpupower"
            ))
    }
}

fn numa(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "NUMA nodes", NODES);
    let Some(text) = root.text(NODES) else {
        return finding;
    };
    let balancing = root.value::<u8>(BALANCING).is_some_and(|value| value != 0);
    match list(&text).len() {
        0 => finding,
        1 => finding.read(Verdict::Ok, "1"),
        nodes if balancing => Finding {
            from: format!("{NODES}, {BALANCING}"),
            ..finding
        }
        .read(Verdict::Warn, format!("{nodes}, balancing"))
        .why("Linux unmaps ring pages to sample accesses, which delays data threads")
        .fix("sudo sysctl -w kernel.numa_balancing=0"),
        nodes => finding
            .read(Verdict::Ok, nodes.to_string())
            .why("place rings and threads on the NUMA node of their network card"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::machine;
    use super::*;
    use Verdict::{Ok, Unknown, Warn};

    fn check(of: fn(&Root) -> Finding, files: &[(&str, &str)]) -> (Verdict, String) {
        let (_dir, root) = machine(files);
        let found = of(&root);
        assert_eq!(found.fix.is_some(), found.verdict == Warn, "{found:?}");
        (found.verdict, found.read)
    }

    #[test]
    fn single_core_is_warning() {
        let allowed = |list| format!("Cpus_allowed:\t3\nCpus_allowed_list:\t{list}\n");
        assert_eq!(
            check(cores, &[(STATUS, &allowed("0-1,4"))]),
            (Ok, "3: 0-1,4".to_owned())
        );
        let online = ("/sys/devices/system/cpu/online", "0-15\n");
        assert_eq!(
            check(cores, &[(STATUS, &allowed("0-1,4")), online]),
            (Ok, "3 of 16: 0-1,4".to_owned())
        );
        assert_eq!(
            check(cores, &[(STATUS, &allowed("2")), online]),
            (Warn, "1 of 16: 2".to_owned())
        );
        assert_eq!(check(cores, &[]).0, Unknown);
    }

    #[test]
    fn isolated_cores_are_listed() {
        assert_eq!(
            check(isolated, &[("/sys/devices/system/cpu/isolated", "\n")]),
            (Ok, "none".to_owned())
        );
        assert_eq!(
            check(isolated, &[("/sys/devices/system/cpu/isolated", "2-3\n")]),
            (Ok, "2-3".to_owned())
        );
        assert_eq!(check(isolated, &[]).0, Unknown);
    }

    #[test]
    fn cpu_quota_is_warning() {
        let group = ("/proc/self/cgroup", "0::/\n");
        assert_eq!(
            check(quota, &[group, ("/sys/fs/cgroup/cpu.max", "max 100000")]),
            (Ok, "none".to_owned())
        );
        let found = check(quota, &[group, ("/sys/fs/cgroup/cpu.max", "150000 100000")]);
        assert_eq!(found, (Warn, "1.50 cores".to_owned()));
    }

    #[test]
    fn core_below_full_clock_is_reported() {
        let zero = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
        let one = "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor";
        assert_eq!(
            check(governor, &[(zero, "performance\n"), (one, "performance\n")]).0,
            Ok
        );
        let found = check(governor, &[(zero, "performance\n"), (one, "powersave\n")]);
        assert_eq!(found, (Warn, "performance, powersave".to_owned()));
        assert_eq!(
            check(governor, &[("/sys/devices/system/cpu/cpu0/online", "1")]).0,
            Ok
        );
        assert_eq!(
            check(governor, &[("/sys/devices/system/cpu/cpufreq/x", "1")]).0,
            Unknown
        );
    }

    #[test]
    fn deep_idle_state_is_warning_unless_disabled() {
        let state = |number: u32, file: &str| {
            format!("/sys/devices/system/cpu/cpu0/cpuidle/state{number}/{file}")
        };
        let (name0, latency0) = (state(0, "name"), state(0, "latency"));
        let (name1, latency1, disable1) =
            (state(1, "name"), state(1, "latency"), state(1, "disable"));
        let files = [
            (&*name0, "C1\n"),
            (&*latency0, "2\n"),
            (&*name1, "C6\n"),
            (&*latency1, "170\n"),
        ];
        assert_eq!(check(idle, &files), (Warn, "C6 wakes in 170 us".to_owned()));
        let disabled = [&files[..], &[(&*disable1, "1\n")]].concat();
        assert_eq!(check(idle, &disabled), (Ok, "C1 wakes in 2 us".to_owned()));
        assert_eq!(
            check(idle, &[("/sys/devices/system/cpu/cpu0/online", "1")]).0,
            Ok
        );
        assert_eq!(check(idle, &[]).0, Unknown);
    }

    #[test]
    fn numa_balancing_on_several_nodes_is_reported() {
        assert_eq!(
            check(numa, &[(NODES, "0\n"), (BALANCING, "1\n")]),
            (Ok, "1".to_owned())
        );
        assert_eq!(
            check(numa, &[(NODES, "0-1\n"), (BALANCING, "0\n")]),
            (Ok, "2".to_owned())
        );
        assert_eq!(
            check(numa, &[(NODES, "0-1\n"), (BALANCING, "1\n")]),
            (Warn, "2, balancing".to_owned())
        );
        assert_eq!(check(numa, &[]).0, Unknown);
    }
}
