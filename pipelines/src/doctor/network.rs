//! Network: buffers of the kernel, and the drops it has counted.

use super::root::Root;
use super::{Finding, Verdict};
use daq_core::units::ByteSize;

const GROUP: &str = "network";
const CORE: &str = "/proc/sys/net/core";
const SOFTNET: &str = "/proc/net/softnet_stat";
const SNMP: &str = "/proc/net/snmp";
/// Holds 13 ms at 10 Gbit/s: longer than a busy system keeps a thread from its core.
const RMEM_ENOUGH: u64 = 16 << 20;
const RMEM_WANTED: u64 = 64 << 20;
/// Linux' default; smaller values have been set by somebody.
const RMEM_DEFAULT: u64 = 212_992;
const BACKLOG_ENOUGH: u64 = 10_000;
const BACKLOG_WANTED: u64 = 30_000;
/// Linux' default.
const BUDGET: u64 = 300;

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    vec![
        setting(
            root,
            "rmem_max",
            RMEM_ENOUGH,
            RMEM_WANTED,
            true,
            "a source's receive buffer cannot be larger, and drops packets while its thread waits for a core",
        ),
        setting(
            root,
            "rmem_default",
            RMEM_DEFAULT,
            RMEM_DEFAULT,
            true,
            "smaller than Linux' default; sources ask for their own size all the same",
        ),
        setting(
            root,
            "netdev_max_backlog",
            BACKLOG_ENOUGH,
            BACKLOG_WANTED,
            false,
            "bursts over loopback, through tunnels or steered to other cores are dropped beyond it",
        ),
        setting(
            root,
            "netdev_budget",
            BUDGET,
            2 * BUDGET,
            false,
            "packets taken in one round of the kernel's receiving",
        ),
        backlog_drops(root),
        squeezed(root),
        socket_drops(root),
    ]
}

/// A setting of `net.core` that should be at least `enough`.
fn setting(
    root: &Root,
    name: &'static str,
    enough: u64,
    wanted: u64,
    bytes: bool,
    why: &'static str,
) -> Finding {
    let path = format!("{CORE}/{name}");
    let finding = Finding::new(GROUP, name, path.as_str());
    let Some(value) = root.value::<u64>(&path) else {
        return finding.why("not visible in this network namespace: look on the host");
    };
    let shown = if bytes {
        ByteSize(value).to_string()
    } else {
        value.to_string()
    };
    if value >= enough {
        finding.read(Verdict::Ok, shown)
    } else {
        finding
            .read(Verdict::Warn, shown)
            .why(why)
            .fix(format!("sudo sysctl -w net.core.{name}={wanted}"))
    }
}

/// The sum over all cores of a hexadecimal column of `/proc/net/softnet_stat`.
fn softnet(root: &Root, column: usize) -> Option<u64> {
    let text = root.text(SOFTNET)?;
    let mut sum = 0_u64;
    for line in text.lines() {
        sum =
            sum.saturating_add(u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok()?);
    }
    Some(sum)
}

fn backlog_drops(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "backlog drops", SOFTNET);
    match softnet(root, 1) {
        None => finding,
        Some(0) => finding.read(Verdict::Ok, "none since boot"),
        Some(count) => {
            let current: u64 = root
                .value(&format!("{CORE}/netdev_max_backlog"))
                .unwrap_or(0);
            let wanted = BACKLOG_WANTED.max(current.saturating_mul(2));
            finding
                .read(Verdict::Warn, format!("{count} packets since boot"))
                .why("dropped before they reached any socket, for netdev_max_backlog was too small")
                .fix(format!(
                    "sudo sysctl -w net.core.netdev_max_backlog={wanted}"
                ))
        }
    }
}

fn squeezed(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "receive rounds cut short", SOFTNET);
    let (Some(count), Some(packets)) = (softnet(root, 2), softnet(root, 0)) else {
        return finding;
    };
    let read = format!("{count} since boot");
    // A few belong to every start; one in ten thousand packets costs throughput.
    if count.saturating_mul(10_000) <= packets.max(1_000_000) {
        finding.read(Verdict::Ok, read)
    } else {
        finding
            .read(Verdict::Warn, read)
            .why("the kernel stopped receiving with packets left, which overflows the card's ring")
            .fix("sudo sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000")
    }
}

fn socket_drops(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "UDP buffer drops", SNMP);
    let Some(text) = root.text(SNMP) else {
        return finding;
    };
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return finding;
    };
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    let count = columns
        .find(|(name, _)| *name == "RcvbufErrors")
        .and_then(|(_, value)| value.parse::<u64>().ok());
    match count {
        None => finding,
        Some(0) => finding.read(Verdict::Ok, "none since boot"),
        Some(count) => finding
            .read(Verdict::Warn, format!("{count} since boot"))
            .why("packets of any program that came while its receive buffer was full")
            .fix(format!("sudo sysctl -w net.core.rmem_max={RMEM_WANTED}  # if they were daq's: see kernel_drop in its ledger")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::machine;
    use super::*;
    use Verdict::{Ok, Unknown, Warn};

    fn find(files: &[(&str, &str)], name: &str) -> Finding {
        let (_dir, root) = machine(files);
        examine(&root)
            .into_iter()
            .find(|finding| finding.name == name)
            .unwrap()
    }

    #[test]
    fn settings_are_compared_with_what_is_enough() {
        for (name, good, bad, fix) in [
            (
                "rmem_max",
                "67108864",
                "212992",
                "sudo sysctl -w net.core.rmem_max=67108864",
            ),
            (
                "rmem_default",
                "212992",
                "4096",
                "sudo sysctl -w net.core.rmem_default=212992",
            ),
            (
                "netdev_max_backlog",
                "30000",
                "1000",
                "sudo sysctl -w net.core.netdev_max_backlog=30000",
            ),
            (
                "netdev_budget",
                "300",
                "64",
                "sudo sysctl -w net.core.netdev_budget=600",
            ),
        ] {
            let path = format!("{CORE}/{name}");
            let found = find(&[(&path, good)], name);
            assert_eq!(
                (found.verdict, found.fix.as_deref(), found.from.as_str()),
                (Ok, None, path.as_str())
            );
            let found = find(&[(&path, bad)], name);
            assert_eq!((found.verdict, found.fix.as_deref()), (Warn, Some(fix)));
            assert_eq!(find(&[(&path, "many")], name).verdict, Unknown);
            assert_eq!(find(&[], name).verdict, Unknown);
        }
        assert_eq!(
            find(&[(&format!("{CORE}/rmem_max"), "4194304")], "rmem_max").read,
            "4 MiB"
        );
    }

    #[test]
    fn drops_of_all_cores_are_summed() {
        let good = "00000602 00000000 00000000\n0000280e 00000000 00000001\n";
        let bad = "00000602 0000000a 00000900\n0000280e 00000006 00000001\n";
        assert_eq!(find(&[(SOFTNET, good)], "backlog drops").verdict, Ok);
        assert_eq!(
            find(&[(SOFTNET, good)], "receive rounds cut short").verdict,
            Ok
        );
        let found = find(
            &[
                (SOFTNET, bad),
                ("/proc/sys/net/core/netdev_max_backlog", "20000"),
            ],
            "backlog drops",
        );
        assert_eq!(
            (found.verdict, found.read.as_str()),
            (Warn, "16 packets since boot")
        );
        assert!(found.fix.unwrap().ends_with("=40000"));
        assert_eq!(
            find(&[(SOFTNET, bad)], "receive rounds cut short").verdict,
            Warn
        );
        assert_eq!(find(&[(SOFTNET, "x")], "backlog drops").verdict, Unknown);
    }

    #[test]
    fn full_sockets_are_evidence() {
        let snmp = |count| {
            format!(
                "Ip: A\nIp: 1\nUdp: InDatagrams RcvbufErrors\nUdp: 687 {count}\nUdpLite: RcvbufErrors\nUdpLite: 9\n"
            )
        };
        assert_eq!(find(&[(SNMP, &snmp(0))], "UDP buffer drops").verdict, Ok);
        let found = find(&[(SNMP, &snmp(1379))], "UDP buffer drops");
        assert_eq!(
            (found.verdict, found.read.as_str()),
            (Warn, "1379 since boot")
        );
        assert_eq!(
            find(&[(SNMP, "Ip: A\n")], "UDP buffer drops").verdict,
            Unknown
        );
    }
}
