//! Checks the system: Linux version, clock, limits and containers.

use super::root::Root;
use super::{Finding, Verdict};
use crate::sys::clock::{self, ClockState};
use daq_core::units::Span;
use std::time::Duration;

const GROUP: &str = "system";
const RELEASE: &str = "/proc/sys/kernel/osrelease";
const URING: &str = "/proc/sys/kernel/io_uring_disabled";
const LIMITS: &str = "/proc/self/limits";
const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// The oldest Linux version that Rust's standard library supports.
const MIN_LINUX: (u32, u32) = (3, 2);
/// The first Linux version with UDP_GRO.
const UDP_GRO_LINUX: (u32, u32) = (5, 0);
/// The first Linux version with the setting that disables io_uring. Earlier versions always allow io_uring.
const URING_SETTING: (u32, u32) = (6, 6);
/// Recommended limit on open files. This limit is sufficient for several hundred sources and sinks, each with a socket
/// and a file.
const RECOMMENDED_FILES: u64 = 1024;
/// Minimum limit on open files. A lower limit is not sufficient for the sockets and files of a small pipeline.
const MIN_FILES: u64 = 32;

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    // The clock can be queried only on the running machine.
    let clock = if root.is_real() {
        clock::state().ok()
    } else {
        None
    };
    vec![
        kernel(root),
        io_uring(root),
        files(root),
        synchronised(clock),
        clocksource(root),
        container(root),
    ]
}

fn release(root: &Root) -> Option<((u32, u32), String)> {
    let text = root.text(RELEASE)?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(((major, minor), text))
}

fn kernel(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "kernel", RELEASE);
    let Some((version, text)) = release(root) else {
        return finding;
    };
    let fix = "sudo apt install linux-image-amd64  # Ubuntu: linux-generic; then reboot";
    if version < MIN_LINUX {
        finding
            .read(Verdict::Bad, text)
            .why("daq requires Linux 3.2 or newer")
            .fix(fix)
    } else if version < UDP_GRO_LINUX {
        finding
            .read(Verdict::Warn, text)
            .why("Linux before 5.0 cannot coalesce UDP packets (UDP_GRO), so receiving costs about three times as much CPU time")
            .fix(fix)
    } else {
        finding.read(Verdict::Ok, text)
    }
}

fn io_uring(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "io_uring", URING);
    let fix = "sudo sysctl -w kernel.io_uring_disabled=0";
    // No sink uses io_uring, so this is not a warning.
    let why = "not needed, because daq writes files with direct I/O";
    match root.value::<u8>(URING) {
        Some(0) => finding.read(Verdict::Ok, "allowed"),
        Some(1) => finding
            .read(Verdict::Ok, "allowed for privileged processes only")
            .why(why)
            .fix(fix),
        Some(_) => finding.read(Verdict::Ok, "forbidden").why(why).fix(fix),
        None => match release(root) {
            Some((version, _)) if version < URING_SETTING => finding
                .read(Verdict::Ok, "allowed")
                .why("this Linux has no setting to disable io_uring"),
            _ => finding,
        },
    }
}

fn files(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "open files", LIMITS);
    let Some(limit) = root.field(LIMITS, "Max open files") else {
        return finding;
    };
    let soft = limit.split_whitespace().next().unwrap_or_default();
    let count = if soft == "unlimited" {
        Some(u64::MAX)
    } else {
        soft.parse().ok()
    };
    let fix = "ulimit -n 65536  # for this shell; LimitNOFILE=65536 in a systemd unit";
    match count {
        None => finding,
        Some(..MIN_FILES) => finding
            .read(Verdict::Bad, soft)
            .why("one source and one sink need more open files than this limit")
            .fix(fix),
        Some(..RECOMMENDED_FILES) => finding
            .read(Verdict::Warn, soft)
            .why("this limit may be too low for many sources and sinks")
            .fix(fix),
        Some(_) => finding.read(Verdict::Ok, soft),
    }
}

fn synchronised(clock: Option<ClockState>) -> Finding {
    let finding = Finding::new(GROUP, "clock", "adjtimex(2)");
    let Some(state) = clock else { return finding };
    let error = Span(Duration::from_micros(
        u64::try_from(state.max_error_us).unwrap_or(0),
    ));
    if !state.synchronised {
        return finding
            .read(Verdict::Warn, "not synchronised")
            .why("the clock is not synchronised, so all timestamps have the error of the clock")
            .fix("sudo apt install chrony && sudo systemctl enable --now chrony");
    }
    let read = format!("synchronised within {error}");
    match state.tai_offset {
        0 => finding
            .read(Verdict::Ok, read)
            .why("the TAI − UTC offset of Linux is not set, so timestamps are in UTC"),
        offset => finding.read(Verdict::Ok, format!("{read}, TAI − UTC {offset} s")),
    }
}

fn clocksource(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "clocksource", CLOCKSOURCE);
    match root.text(CLOCKSOURCE) {
        None => finding,
        Some(name) if matches!(name.as_str(), "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" | "pit") => finding
            .read(Verdict::Warn, name)
            .why("every timestamp requires a slow system call")
            .fix(format!("echo tsc | sudo tee {CLOCKSOURCE}  # `sudo dmesg | grep -i tsc` shows why Linux did not choose tsc")),
        Some(name) => finding.read(Verdict::Ok, name),
    }
}

fn container(root: &Root) -> Finding {
    const HINTS: [(&str, &str); 2] = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")];
    const GROUPS: [(&str, &str); 4] = [
        ("kubepods", "Kubernetes"),
        ("docker", "Docker"),
        ("libpod", "Podman"),
        ("lxc", "LXC"),
    ];
    let why = "Linux settings are those of the host; pass devices, cores and the memlock limit to the container";
    let fix = "docker run --ulimit memlock=-1 --network host --device /dev/…";
    let found = |name: &str, from: &str| {
        Finding::new(GROUP, "container", from)
            .read(Verdict::Ok, name)
            .why(why)
            .fix(fix)
    };
    if let Some(name) = root.text("/run/systemd/container") {
        return found(&name, "/run/systemd/container");
    }
    let groups = root.text("/proc/self/cgroup").unwrap_or_default();
    if let Some((_, name)) = GROUPS.iter().find(|(part, _)| groups.contains(part)) {
        return found(name, "/proc/self/cgroup");
    }
    if let Some((file, name)) = HINTS.iter().find(|(file, _)| root.exists(file)) {
        return found(name, file);
    }
    Finding::new(
        GROUP,
        "container",
        "/run/systemd/container, /proc/self/cgroup, /.dockerenv, /run/.containerenv",
    )
    .read(Verdict::Ok, "none")
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::machine;
    use super::*;
    use Verdict::{Bad, Ok, Unknown, Warn};

    #[test]
    fn linux_versions_are_compared_numerically() {
        for (release, verdict) in [
            ("6.18.44-generic", Ok),
            ("5.0.0", Ok),
            ("10.0", Ok),
            ("4.19.0-26-amd64", Warn),
            ("2.6.32-754.el6", Bad),
            ("3.2.0", Warn),
            ("x", Unknown),
        ] {
            let (_dir, root) = machine(&[(RELEASE, release)]);
            assert_eq!(kernel(&root).verdict, verdict, "{release}");
        }
        assert_eq!(kernel(&machine(&[]).1).verdict, Unknown);
    }

    #[test]
    fn io_uring_disabled_is_reported() {
        for (value, read) in [
            ("0", "allowed"),
            ("1", "allowed for privileged processes only"),
            ("2", "forbidden"),
        ] {
            let found = io_uring(&machine(&[(URING, value)]).1);
            assert_eq!((found.verdict, found.read.as_str()), (Ok, read));
        }
        assert_eq!(io_uring(&machine(&[(RELEASE, "6.1.0")]).1).verdict, Ok);
        assert_eq!(io_uring(&machine(&[(RELEASE, "6.6.0")]).1).verdict, Unknown);
    }

    #[test]
    fn low_file_descriptor_limit_is_bad() {
        for (soft, verdict) in [
            ("20000", Ok),
            ("unlimited", Ok),
            ("1024", Ok),
            ("256", Warn),
            ("16", Bad),
            ("few", Unknown),
        ] {
            let limits = format!(
                "Max open files            {soft}                20000                files\n"
            );
            assert_eq!(
                files(&machine(&[(LIMITS, &limits)]).1).verdict,
                verdict,
                "{soft}"
            );
        }
    }

    #[test]
    fn unsynchronised_clock_is_warning() {
        let state = ClockState {
            synchronised: true,
            max_error_us: 1500,
            tai_offset: 37,
        };
        let found = synchronised(Some(state));
        assert_eq!(
            (found.verdict, found.read.as_str()),
            (Ok, "synchronised within 1.5 ms, TAI − UTC 37 s")
        );
        let found = synchronised(Some(ClockState {
            tai_offset: 0,
            ..state
        }));
        assert_eq!(found.verdict, Ok);
        assert!(found.why.unwrap().contains("UTC"));
        let found = synchronised(Some(ClockState {
            synchronised: false,
            ..state
        }));
        assert_eq!(found.verdict, Warn);
        assert!(found.fix.is_some());
        assert_eq!(synchronised(None).verdict, Unknown);
    }

    #[test]
    fn slow_clocksource_is_warning() {
        for (name, verdict) in [
            ("tsc\n", Ok),
            ("kvm-clock\n", Ok),
            ("hpet\n", Warn),
            ("acpi_pm\n", Warn),
        ] {
            assert_eq!(
                clocksource(&machine(&[(CLOCKSOURCE, name)]).1).verdict,
                verdict,
                "{name}"
            );
        }
        assert_eq!(clocksource(&machine(&[]).1).verdict, Unknown);
    }

    #[test]
    fn container_is_detected() {
        for (path, text, name) in [
            ("/.dockerenv", "", "Docker"),
            ("/run/.containerenv", "", "Podman"),
            ("/run/systemd/container", "lxc\n", "lxc"),
            (
                "/proc/self/cgroup",
                "0::/kubepods/besteffort/pod1\n",
                "Kubernetes",
            ),
            ("/proc/self/cgroup", "0::/user.slice\n", "none"),
        ] {
            let found = container(&machine(&[(path, text)]).1);
            assert_eq!((found.verdict, found.read.as_str()), (Ok, name));
        }
    }
}
