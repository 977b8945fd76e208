//! Checks the network: the buffers of Linux, and the packets that Linux drops.

use super::check::{Finding, Judgement, finding, ok, unreadable, warn};
use super::drops::Drops;
use super::root::Root;
use daq_core::units::ByteSize;
use daq_drivers::sys::interface::{Timestamping, timestamping};

pub(super) const GROUP: &str = "network";
pub(super) const CORE: &str = "/proc/sys/net/core";
const NET_CLASS: &str = "/sys/class/net";
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

/// A setting in `net.core`.
struct Setting {
    name: &'static str,
    /// Values from this one on are sufficient.
    enough: u64,
    /// The value that the fix sets.
    wanted: u64,
    is_bytes: bool,
    /// The consequence of a smaller value.
    why: &'static str,
}

const SETTINGS: [Setting; 4] = [
    Setting {
        name: "rmem_max",
        enough: RECOMMENDED_RMEM,
        wanted: RMEM_WANTED,
        is_bytes: true,
        why: "limits the receive buffer of sources; packets are dropped if the buffer fills while the source's thread waits for a core",
    },
    Setting {
        name: "rmem_default",
        enough: RMEM_DEFAULT,
        wanted: RMEM_DEFAULT,
        is_bytes: true,
        why: "this value is smaller than the Linux default; daq sources are not affected, because they set the size of their receive buffers",
    },
    Setting {
        name: "netdev_max_backlog",
        enough: BACKLOG_ENOUGH,
        wanted: BACKLOG_WANTED,
        is_bytes: false,
        why: "Linux drops larger bursts that arrive over loopback, through tunnels or steered to other cores",
    },
    Setting {
        name: "netdev_budget",
        enough: DEFAULT_BUDGET,
        wanted: 2 * DEFAULT_BUDGET,
        is_bytes: false,
        why: "maximum number of packets that Linux receives per NAPI polling cycle",
    },
];

const IPV4: &str = "/proc/sys/net/ipv4";
/// The files with the buffer sizes of TCP connections: minimum, initial size and maximum. The maximum should be at least that
/// of Linux's default for sending.
const TCP_BUFFERS: [&str; 2] = ["tcp_rmem", "tcp_wmem"];
const TCP_BUFFER_ENOUGH: u64 = 4 << 20;
const TCP_BUFFER_WANTED: u64 = 64 << 20;

/// Returns the findings. `before` contains the counters of the first reading.
pub(super) fn examine(root: &Root, before: &Drops) -> Vec<Finding> {
    let settings = SETTINGS.iter().filter_map(|setting| {
        let path = format!("{CORE}/{}", setting.name);
        let judged = setting.judge(root.value(&path));
        finding(GROUP, setting.name, path, Some(judged))
    });
    let buffers = TCP_BUFFERS.iter().filter_map(|name| {
        let path = format!("{IPV4}/{name}");
        let judged = judge_tcp_buffer(name, root.text(&path));
        finding(GROUP, name, path, Some(judged))
    });
    settings
        .chain(buffers)
        .chain(timestamps(root))
        .chain(before.watched(root))
        .collect()
}

/// Judges the three sizes of a TCP buffer.
fn judge_tcp_buffer(name: &str, text: Option<String>) -> Judgement {
    let sizes: Option<Vec<u64>> = text.and_then(|text| {
        let sizes = text.split_ascii_whitespace();
        sizes.map(|size| size.parse().ok()).collect()
    });
    let Some([min, initial, max]) = sizes.as_deref() else {
        return unreadable();
    };
    let read = format!("up to {}", ByteSize(*max));
    let why =
        "limits a connection of `stream` with transport = \"tcp\" to this size per round-trip time";
    if *max >= TCP_BUFFER_ENOUGH {
        return ok(read).why(why);
    }
    let fix = format!("sudo sysctl -w net.ipv4.{name}=\"{min} {initial} {TCP_BUFFER_WANTED}\"");
    warn(read, why, fix)
}

/// Returns the hardware timestamps of the interfaces of network cards.
fn timestamps(root: &Root) -> Vec<Finding> {
    // Interfaces can be queried only on the running machine.
    if !root.is_real() {
        return Vec::new();
    }
    let is_card = |name: &String| root.exists(&format!("{NET_CLASS}/{name}/device"));
    let names = root.names(NET_CLASS).into_iter().filter(is_card);
    let judge = |name: &String| {
        let state = timestamping(name);
        let from = format!("ethtool -T {name}");
        let group = format!("{GROUP} {name}");
        finding(
            group,
            "timestamps",
            from,
            Some(judge_timestamps(name, state)),
        )
    };
    names.filter_map(|name| judge(&name)).collect()
}

fn judge_timestamps(name: &str, state: Option<Timestamping>) -> Judgement {
    let why = "needed only by sources with `timestamps = \"hardware\"` or \"auto\"";
    match state {
        None => unreadable().why(why),
        Some(state) if !state.can_receive() => ok("by Linux only").why(why),
        Some(state) => {
            let clock = state
                .clock()
                .map_or_else(String::new, |n| format!(" (ptp{n})"));
            if state.is_on() {
                ok(format!("hardware{clock}"))
            } else {
                ok(format!("hardware{clock}, off"))
                    .why(why)
                    .fix(format!("sudo hwstamp_ctl -i {name} -r 1"))
            }
        }
    }
}

impl Setting {
    fn judge(&self, value: Option<u64>) -> Judgement {
        let Some(value) = value else {
            return unreadable()
                .why("not visible in this network namespace; run daq doctor on the host");
        };
        let read = if self.is_bytes {
            ByteSize(value).to_string()
        } else {
            value.to_string()
        };
        if value >= self.enough {
            return ok(read);
        }
        let fix = format!("sudo sysctl -w net.core.{}={}", self.name, self.wanted);
        warn(read, self.why, fix)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::judged;
    use super::*;
    use crate::doctor::Status::{Ok, Unknown, Warning};

    fn find(files: &[(&str, &str)], name: &str) -> Finding {
        judged(|root| examine(root, &Drops::read(root)), files, name)
    }

    #[test]
    fn network_settings_are_compared_with_recommended_values() {
        for (name, good, bad, fix) in [
            ("rmem_max", "67108864", "212992", "rmem_max=67108864"),
            ("rmem_default", "212992", "4096", "rmem_default=212992"),
            (
                "netdev_max_backlog",
                "30000",
                "1000",
                "netdev_max_backlog=30000",
            ),
            ("netdev_budget", "300", "64", "netdev_budget=600"),
        ] {
            let path = format!("{CORE}/{name}");
            let found = find(&[(&path, good)], name);
            assert_eq!(
                (found.status, found.fix, found.from),
                (Ok, None, path.clone())
            );
            let found = find(&[(&path, bad)], name);
            let fix = format!("sudo sysctl -w net.core.{fix}");
            assert_eq!((found.status, found.fix), (Warning, Some(fix)));
            assert_eq!(find(&[(&path, "many")], name).status, Unknown);
            assert_eq!(find(&[], name).status, Unknown);
        }
        let path = format!("{CORE}/rmem_max");
        assert_eq!(find(&[(&path, "4194304")], "rmem_max").read, "4 MiB");
    }

    #[test]
    fn largest_buffer_of_tcp_connections_is_judged() {
        let path = format!("{IPV4}/tcp_rmem");
        let found = find(&[(&path, "4096\t131072\t6291456\n")], "tcp_rmem");
        assert_eq!((found.status, found.read.as_str()), (Ok, "up to 6 MiB"));
        let found = find(&[(&path, "4096 131072 1048576")], "tcp_rmem");
        let fix = "sudo sysctl -w net.ipv4.tcp_rmem=\"4096 131072 67108864\"";
        assert_eq!((found.status, found.fix.as_deref()), (Warning, Some(fix)));
        for text in ["", "4096 131072", "a b c"] {
            assert_eq!(find(&[(&path, text)], "tcp_rmem").status, Unknown);
        }
    }
}
