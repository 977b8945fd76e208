//! Checks the processor: cores, clock frequency, idle states, quotas and NUMA.

use super::cgroup;
use super::check::{Finding, Judgement, check, ok, table, warn};
use super::root::{Root, list};
use std::collections::BTreeSet;

const CPU: &str = "/sys/devices/system/cpu";
const GOVERNORS: &str = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
const STATUS: &str = "/proc/self/status";
const NODES: &str = "/sys/devices/system/node/online";
const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// Maximum wake-up time in µs. In this time, 100 Gbit/s fill one third of a buffer of 4 MiB.
const WAKE_US: u64 = 100;

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    let checks = [
        check("cores", STATUS, cores),
        check("isolated cores", "./isolated", isolated),
        check("processor quota", "/proc/self/cgroup", quota),
        check("governor", GOVERNORS, governor),
        check("idle states", "./cpu*/cpuidle", idle),
        check("NUMA nodes", NODES, numa),
    ];
    table("processor", CPU, root, &checks)
}

fn cores(root: &Root) -> Option<Judgement> {
    let allowed = root.field(STATUS, "Cpus_allowed_list:")?;
    let count = list(&allowed).len();
    let online = root.text(&format!("{CPU}/online"));
    let online = online.map_or(count, |text| list(&text).len());
    let read = if count < online {
        format!("{count} of {online}: {allowed}")
    } else {
        format!("{count}: {allowed}")
    };
    match count {
        0 => None,
        1 => Some(warn(
            read,
            "sources, kernels and sinks share one core",
            "taskset -cp 0-$(($(nproc --all) - 1)) $$  # for this shell; AllowedCPUs= in a systemd unit",
        )),
        _ => Some(ok(read)),
    }
}

fn isolated(root: &Root) -> Option<Judgement> {
    let cores = root.text(&format!("{CPU}/isolated"))?;
    Some(if cores.is_empty() {
        ok("none").why("needed only for the lowest latencies")
    } else {
        ok(cores).why("the Linux scheduler does not use these cores; pin data threads to them")
    })
}

fn quota(root: &Root) -> Option<Judgement> {
    let Some((cores, file)) = cgroup::cpu_quota(root) else {
        return Some(ok("none"));
    };
    let quota = warn(
        format!("{cores:.2} cores"),
        "data threads pause when they have used the quota of a period, so packets are lost",
        "sudo systemctl set-property UNIT CPUQuota=  # or: docker update --cpu-quota -1 CONTAINER",
    );
    Some(quota.from(file))
}

/// Returns the names of the cores' directories.
fn each_core(root: &Root) -> impl Iterator<Item = String> {
    let number = |name: &String| {
        name.strip_prefix("cpu")
            .is_some_and(|rest| rest.parse::<usize>().is_ok())
    };
    root.names(CPU).into_iter().filter(number)
}

fn governor(root: &Root) -> Option<Judgement> {
    let governors: BTreeSet<_> = each_core(root)
        .filter_map(|core| root.text(&format!("{CPU}/{core}/cpufreq/scaling_governor")))
        .collect();
    if governors.is_empty() {
        // Without cores, the directory cannot be read.
        each_core(root).next()?;
        let why = "this machine does not support setting the clock frequency; this is normal in a virtual machine";
        return Some(ok("none").why(why));
    }
    let names: Vec<_> = governors.iter().map(String::as_str).collect();
    Some(if names == ["performance"] {
        ok("performance")
    } else {
        warn(
            names.join(", "),
            "cores reduce their clock between bursts, which delays the next burst",
            format!("echo performance | sudo tee {GOVERNORS}"),
        )
    })
}

/// Reports the enabled idle state that has the longest wake-up time, over all cores.
fn idle(root: &Root) -> Option<Judgement> {
    each_core(root).next()?;
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
        let why = "this machine does not support setting idle states; this is normal in a virtual machine";
        return Some(ok("none").why(why));
    };
    let read = format!("{name} wakes in {latency} us");
    Some(if latency <= WAKE_US {
        ok(read)
    } else {
        warn(
            read,
            "the time to wake up a core delays the first packets of a burst",
            format!("sudo cpupower idle-set -D {WAKE_US}  # package linux-cpupower"),
        )
    })
}

fn numa(root: &Root) -> Option<Judgement> {
    let is_balancing = root.value::<u8>(BALANCING).is_some_and(|value| value != 0);
    match list(&root.text(NODES)?).len() {
        0 => None,
        1 => Some(ok("1")),
        nodes if is_balancing => {
            let balancing = warn(
                format!("{nodes}, balancing"),
                "Linux unmaps ring pages to sample accesses, which delays data threads",
                "sudo sysctl -w kernel.numa_balancing=0",
            );
            Some(balancing.from(format!("{NODES}, {BALANCING}")))
        }
        nodes => {
            let why = "place rings and threads on the NUMA node of their network card";
            Some(ok(nodes.to_string()).why(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::judged;
    use super::*;
    use crate::doctor::Status::{self, Ok, Unknown, Warning};

    /// Checks the status and the value of the finding `name` on a machine with these files.
    fn reads(name: &str, files: &[(&str, &str)], status: Status, read: &str) {
        let found = judged(examine, files, name);
        assert_eq!(found.fix.is_some(), status == Warning, "{found:?}");
        assert_eq!(found.summary(), (status, read));
    }

    fn unreadable(name: &str) {
        reads(name, &[], Unknown, "not readable");
    }

    /// A machine with one core whose directory has no other files.
    const CORE: (&str, &str) = ("/sys/devices/system/cpu/cpu0/online", "1");

    #[test]
    fn single_core_is_warning() {
        let some = (STATUS, "Cpus_allowed:\t3\nCpus_allowed_list:\t0-1,4\n");
        let one = (STATUS, "Cpus_allowed:\t3\nCpus_allowed_list:\t2\n");
        let online = ("/sys/devices/system/cpu/online", "0-15\n");
        reads("cores", &[some], Ok, "3: 0-1,4");
        reads("cores", &[some, online], Ok, "3 of 16: 0-1,4");
        reads("cores", &[one, online], Warning, "1 of 16: 2");
        unreadable("cores");
    }

    #[test]
    fn isolated_cores_are_listed() {
        let path = "/sys/devices/system/cpu/isolated";
        reads("isolated cores", &[(path, "\n")], Ok, "none");
        reads("isolated cores", &[(path, "2-3\n")], Ok, "2-3");
        unreadable("isolated cores");
    }

    #[test]
    fn cpu_quota_is_warning() {
        let group = ("/proc/self/cgroup", "0::/\n");
        let max = |text| ("/sys/fs/cgroup/cpu.max", text);
        reads("processor quota", &[group, max("max 100000")], Ok, "none");
        let quota = [group, max("150000 100000")];
        reads("processor quota", &quota, Warning, "1.50 cores");
    }

    #[test]
    fn core_below_full_clock_is_reported() {
        let zero = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
        let one = "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor";
        let fast = [(zero, "performance\n"), (one, "performance\n")];
        reads("governor", &fast, Ok, "performance");
        let slow = [fast[0], (one, "powersave\n")];
        reads("governor", &slow, Warning, "performance, powersave");
        reads("governor", &[CORE], Ok, "none");
        let other = [("/sys/devices/system/cpu/cpufreq/x", "1")];
        reads("governor", &other, Unknown, "not readable");
    }

    #[test]
    fn deep_idle_state_is_warning_unless_disabled() {
        let states = [
            ("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "C1\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "2\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C6\n"),
            (
                "/sys/devices/system/cpu/cpu0/cpuidle/state1/latency",
                "170\n",
            ),
        ];
        reads("idle states", &states, Warning, "C6 wakes in 170 us");
        let disable = ("/sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1\n");
        let disabled = [&states[..], &[disable]].concat();
        reads("idle states", &disabled, Ok, "C1 wakes in 2 us");
        reads("idle states", &[CORE], Ok, "none");
        unreadable("idle states");
    }

    #[test]
    fn numa_balancing_on_several_nodes_is_reported() {
        let balancing = (BALANCING, "1\n");
        reads("NUMA nodes", &[(NODES, "0\n"), balancing], Ok, "1");
        let still = [(NODES, "0-1\n"), (BALANCING, "0\n")];
        reads("NUMA nodes", &still, Ok, "2");
        let several = [(NODES, "0-1\n"), balancing];
        reads("NUMA nodes", &several, Warning, "2, balancing");
        unreadable("NUMA nodes");
    }
}
