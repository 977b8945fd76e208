//! Checks the system: Linux version, clock, limits and containers.

use super::check::{Finding, Judgement, bad, check, ok, table, unreadable, warn};
use super::root::Root;
use daq_core::units::Span;
use daq_pipelines::clock::{self, ClockState, PTP_CLASS, PtpClock};
use std::time::Duration;

const RELEASE: &str = "/proc/sys/kernel/osrelease";
const URING: &str = "/proc/sys/kernel/io_uring_disabled";
const LIMITS: &str = "/proc/self/limits";
const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const CONTAINER: &str =
    "/run/systemd/container, /proc/self/cgroup, /.dockerenv, /run/.containerenv";
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
    let checks = [
        check("kernel", RELEASE, kernel),
        check("io_uring", URING, io_uring),
        check("open files", LIMITS, files),
        check("clock", "adjtimex(2)", synchronised),
        check("PTP clocks", PTP_CLASS, ptp_clocks),
        check("clocksource", CLOCKSOURCE, clocksource),
        check("container", CONTAINER, container),
    ];
    table("system", "", root, &checks)
}

/// Returns the Linux version as numbers and as text.
pub(super) fn release(root: &Root) -> Option<((u32, u32), String)> {
    let text = root.text(RELEASE)?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(((major, minor), text))
}

fn kernel(root: &Root) -> Option<Judgement> {
    let (version, text) = release(root)?;
    let fix = "sudo apt install linux-image-amd64  # Ubuntu: linux-generic; then reboot";
    Some(if version < MIN_LINUX {
        bad(text, "daq requires Linux 3.2 or newer", fix)
    } else if version < UDP_GRO_LINUX {
        let why = "Linux before 5.0 cannot coalesce UDP packets (UDP_GRO), so receiving costs about three times as much CPU time";
        warn(text, why, fix)
    } else {
        ok(text)
    })
}

fn io_uring(root: &Root) -> Option<Judgement> {
    let fix = "sudo sysctl -w kernel.io_uring_disabled=0";
    // No sink uses io_uring, so this is not a warning.
    let why = "not needed, because daq writes files with direct I/O";
    match root.value::<u8>(URING) {
        Some(0) => Some(ok("allowed")),
        Some(1) => {
            let read = "allowed for privileged processes only";
            Some(ok(read).why(why).fix(fix))
        }
        Some(_) => Some(ok("forbidden").why(why).fix(fix)),
        None if release(root)?.0 < URING_SETTING => {
            Some(ok("allowed").why("this Linux has no setting to disable io_uring"))
        }
        None => None,
    }
}

fn files(root: &Root) -> Option<Judgement> {
    let limit = root.field(LIMITS, "Max open files")?;
    let soft = limit.split_whitespace().next()?;
    let count = match soft {
        "unlimited" => u64::MAX,
        soft => soft.parse().ok()?,
    };
    let fix = "ulimit -n 65536  # for this shell; LimitNOFILE=65536 in a systemd unit";
    Some(match count {
        ..MIN_FILES => {
            let why = "one source and one sink need more open files than this limit";
            bad(soft, why, fix)
        }
        MIN_FILES..RECOMMENDED_FILES => {
            let why = "this limit may be too low for many sources and sinks";
            warn(soft, why, fix)
        }
        _ => ok(soft),
    })
}

fn synchronised(root: &Root) -> Option<Judgement> {
    // The clock can be queried only on the running machine.
    let state = root.is_real().then(clock::state)?.ok()?;
    Some(judge_clock(state))
}

fn judge_clock(state: ClockState) -> Judgement {
    if !state.synchronised {
        return warn(
            "not synchronised",
            "the clock is not synchronised, so all timestamps have the error of the clock",
            "sudo apt install chrony && sudo systemctl enable --now chrony",
        );
    }
    let error = u64::try_from(state.max_error_us).unwrap_or(0);
    let read = format!("synchronised within {}", Span(Duration::from_micros(error)));
    match state.tai_offset {
        0 => ok(read).why("the TAI − UTC offset of Linux is not set, so timestamps are in UTC"),
        offset => ok(format!("{read}, TAI − UTC {offset} s")),
    }
}

fn ptp_clocks(root: &Root) -> Option<Judgement> {
    if root.names(PTP_CLASS).is_empty() {
        let why =
            "needed only for hardware timestamps, which no network card of this machine supports";
        return Some(ok("none").why(why));
    }
    // The clocks can be read only on the running machine.
    let clocks = root.is_real().then(clock::ptp_clocks)?;
    judge_ptp(&clocks)
}

/// Judges the PTP clocks by the worst of them.
fn judge_ptp(clocks: &[PtpClock]) -> Option<Judgement> {
    clocks
        .iter()
        .map(judge_ptp_clock)
        .max_by_key(|judgement| judgement.status)
}

fn judge_ptp_clock(clock: &PtpClock) -> Judgement {
    let PtpClock {
        name,
        driver,
        offset,
    } = clock;
    let offset = match offset {
        Ok(offset) => offset,
        Err(error) => {
            return unreadable()
                .why(format!("cannot read /dev/{name} ({driver}): {error}"))
                .fix("sudo daq doctor");
        }
    };
    if let Some((seconds @ (0 | 37), rest)) = offset.scale() {
        let scale = if seconds == 0 { "UTC" } else { "TAI" };
        return ok(format!("{name} ({driver}): {scale} {rest:+} ns"))
            .why("difference from the system clock");
    }
    let seconds = offset.ns as f64 / 1e9;
    let why = "the clock is neither in TAI nor in UTC, so hardware timestamps have another epoch";
    let fix = "sudo ptp4l -i INTERFACE -s  # follows a PTP grandmaster; or set the clock from the system clock: sudo phc2sys -s CLOCK_REALTIME -c INTERFACE -O 37";
    let read = format!("{name} ({driver}): system clock {seconds:+.6} s");
    warn(read, why, fix)
}

fn clocksource(root: &Root) -> Option<Judgement> {
    let name = root.text(CLOCKSOURCE)?;
    let fix = format!(
        "echo tsc | sudo tee {CLOCKSOURCE}  # `sudo dmesg | grep -i tsc` shows why Linux did not choose tsc"
    );
    Some(match name.as_str() {
        "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" | "pit" => {
            warn(name, "every timestamp requires a slow system call", fix)
        }
        _ => ok(name),
    })
}

fn container(root: &Root) -> Option<Judgement> {
    const HINTS: [(&str, &str); 2] = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")];
    const GROUPS: [(&str, &str); 4] = [
        ("kubepods", "Kubernetes"),
        ("docker", "Docker"),
        ("libpod", "Podman"),
        ("lxc", "LXC"),
    ];
    let groups = root.text("/proc/self/cgroup").unwrap_or_default();
    let group = GROUPS.iter().find(|(part, _)| groups.contains(part));
    let hint = HINTS.iter().find(|(file, _)| root.exists(file));
    let (name, from) = match (root.text("/run/systemd/container"), group, hint) {
        (Some(name), ..) => (name, "/run/systemd/container"),
        (None, Some((_, name)), _) => ((*name).to_owned(), "/proc/self/cgroup"),
        (None, None, Some((file, name))) => ((*name).to_owned(), *file),
        (None, None, None) => return Some(ok("none")),
    };
    let why = "Linux settings are those of the host; pass devices, cores and the memlock limit to the container";
    let fix = "docker run --ulimit memlock=-1 --network host --device /dev/…";
    Some(ok(name).why(why).fix(fix).from(from))
}

#[cfg(test)]
mod tests {
    use super::super::tests::judged;
    use super::*;
    use crate::doctor::Status::{Ok, Problem, Unknown, Warning};
    use daq_pipelines::clock::PtpOffset;

    #[test]
    fn linux_versions_are_compared_numerically() {
        for (release, status) in [
            ("6.18.44-generic", Ok),
            ("5.0.0", Ok),
            ("10.0", Ok),
            ("4.19.0-26-amd64", Warning),
            ("2.6.32-754.el6", Problem),
            ("3.2.0", Warning),
            ("x", Unknown),
        ] {
            let found = judged(examine, &[(RELEASE, release)], "kernel");
            assert_eq!(found.status, status, "{release}");
        }
        assert_eq!(judged(examine, &[], "kernel").status, Unknown);
    }

    #[test]
    fn io_uring_disabled_is_reported() {
        for (file, text, status, read) in [
            (URING, "0", Ok, "allowed"),
            (URING, "1", Ok, "allowed for privileged processes only"),
            (URING, "2", Ok, "forbidden"),
            (RELEASE, "6.1.0", Ok, "allowed"),
            (RELEASE, "6.6.0", Unknown, "not readable"),
        ] {
            let found = judged(examine, &[(file, text)], "io_uring");
            assert_eq!(found.summary(), (status, read));
        }
    }

    #[test]
    fn low_file_descriptor_limit_is_bad() {
        for (soft, status) in [
            ("20000", Ok),
            ("unlimited", Ok),
            ("1024", Ok),
            ("256", Warning),
            ("16", Problem),
            ("few", Unknown),
        ] {
            let limits = format!("Max open files            {soft}       20000    files\n");
            let found = judged(examine, &[(LIMITS, &limits)], "open files");
            assert_eq!(found.status, status, "{soft}");
        }
    }

    #[test]
    fn unsynchronised_clock_is_warning() {
        let judge = |synchronised, tai_offset| {
            judge_clock(ClockState {
                synchronised,
                max_error_us: 1500,
                estimated_error_us: 12,
                tai_offset,
            })
        };
        let set = ok("synchronised within 1.5 ms, TAI − UTC 37 s");
        assert_eq!(judge(true, 37), set);
        let unset = "the TAI − UTC offset of Linux is not set, so timestamps are in UTC";
        assert_eq!(judge(true, 0), ok("synchronised within 1.5 ms").why(unset));
        assert_eq!(judge(false, 37).status, Warning);
        assert_eq!(judged(examine, &[], "clock").status, Unknown);
    }

    #[test]
    fn ptp_clock_without_time_scale_is_warning() {
        let clock = |offset| PtpClock {
            name: "ptp0".to_owned(),
            driver: "mlx5_ptp".to_owned(),
            offset,
        };
        let at = |ns| clock(Result::Ok(PtpOffset { ns, delay_ns: 900 }));
        let judge = |clock| judge_ptp(&[clock]).unwrap();
        let why = "difference from the system clock";
        let tai = ok("ptp0 (mlx5_ptp): TAI -12 ns").why(why);
        assert_eq!(judge(at(36_999_999_988)), tai);
        assert_eq!(judge(at(5)), ok("ptp0 (mlx5_ptp): UTC +5 ns").why(why));
        let other = judge(at(-1_700_000_000_400_000_000));
        assert_eq!(other.status, Warning);
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(judge(clock(Err(denied))).status, Unknown);
        let both = [at(5), at(500_000_000)];
        assert_eq!(judge_ptp(&both).unwrap().status, Warning);
        let found = judged(examine, &[], "PTP clocks");
        assert_eq!(found.summary(), (Ok, "none"));
    }

    #[test]
    fn slow_clocksource_is_warning() {
        for (name, status) in [
            ("tsc\n", Ok),
            ("kvm-clock\n", Ok),
            ("hpet\n", Warning),
            ("acpi_pm\n", Warning),
        ] {
            let found = judged(examine, &[(CLOCKSOURCE, name)], "clocksource");
            assert_eq!(found.status, status, "{name}");
        }
        assert_eq!(judged(examine, &[], "clocksource").status, Unknown);
    }

    #[test]
    fn container_is_detected() {
        for (path, text, name) in [
            ("/.dockerenv", "", "Docker"),
            ("/run/.containerenv", "", "Podman"),
            ("/run/systemd/container", "lxc\n", "lxc"),
            (
                "/proc/self/cgroup",
                "0::/kubepods/best/pod1\n",
                "Kubernetes",
            ),
            ("/proc/self/cgroup", "0::/user.slice\n", "none"),
        ] {
            let found = judged(examine, &[(path, text)], "container");
            assert_eq!(found.summary(), (Ok, name));
        }
    }
}
