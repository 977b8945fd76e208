//! Checks the network: the buffers of Linux, and the packets that Linux drops.

use super::drops::{CounterChange, Drops};
use super::root::Root;
use super::{Finding, Verdict};
use daq_core::units::ByteSize;

pub(super) const GROUP: &str = "network";
pub(super) const CORE: &str = "/proc/sys/net/core";
/// Recommended receive buffer in bytes. Such a buffer holds the data of 13 ms at 10 Gbit/s, which is longer than a busy
/// system delays a thread.
const RECOMMENDED_RMEM: u64 = 16 << 20;
pub(super) const RMEM_WANTED: u64 = 64 << 20;
/// Default size of a receive buffer in Linux, in bytes. If the value is smaller, an administrator has changed it.
const RMEM_DEFAULT: u64 = 212_992;
const BACKLOG_ENOUGH: u64 = 10_000;
pub(super) const BACKLOG_WANTED: u64 = 30_000;
/// Default of the setting `netdev_budget` in Linux.
const DEFAULT_BUDGET: u64 = 300;

/// Returns the findings. `before` contains the counters of the first reading.
pub(super) fn examine(root: &Root, before: &Drops) -> Vec<Finding> {
    let mut findings = vec![
        setting(
            root,
            "rmem_max",
            RECOMMENDED_RMEM,
            RMEM_WANTED,
            true,
            "limits the receive buffer of sources; packets are dropped if the buffer fills while the source's thread waits for a core",
        ),
        setting(
            root,
            "rmem_default",
            RMEM_DEFAULT,
            RMEM_DEFAULT,
            true,
            "this value is smaller than the Linux default; daq sources are not affected, because they set the size of their receive buffers",
        ),
        setting(
            root,
            "netdev_max_backlog",
            BACKLOG_ENOUGH,
            BACKLOG_WANTED,
            false,
            "Linux drops larger bursts that arrive over loopback, through tunnels or steered to other cores",
        ),
        setting(
            root,
            "netdev_budget",
            DEFAULT_BUDGET,
            2 * DEFAULT_BUDGET,
            false,
            "maximum number of packets that Linux receives per NAPI polling cycle",
        ),
    ];
    findings.extend(before.watched(root).into_iter().map(CounterChange::finding));
    findings
}

/// Checks a setting in `net.core`, which should be at least `enough`.
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
        return finding.why("not visible in this network namespace; run daq doctor on the host");
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

#[cfg(test)]
mod tests {
    use super::super::root::tests::machine;
    use super::*;
    use Verdict::{Ok, Unknown, Warn};

    fn find(files: &[(&str, &str)], name: &str) -> Finding {
        let (_dir, root) = machine(files);
        examine(&root, &Drops::read(&root))
            .into_iter()
            .find(|finding| finding.name == name)
            .unwrap()
    }

    #[test]
    fn network_settings_are_compared_with_recommended_values() {
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
}
