//! What the kernel has dropped since it was booted, and whether it drops now.
//!
//! The counters never fall, so a total tells of any time since the start. They are read twice: only one that
//! grows between the two is a warning.

use super::network::{BACKLOG_WANTED, CORE, GROUP, RMEM_WANTED};
use super::root::Root;
use super::{Finding, Verdict};
use daq_core::units::Span;
use std::time::Duration;

const SOFTNET: &str = "/proc/net/softnet_stat";
const SNMP: &str = "/proc/net/snmp";
const CARDS: &str = "/sys/class/net";
/// Cards count what found no free buffer under either name, depending on their drivers.
const CARD_DROPS: [&str; 2] = ["rx_missed_errors", "rx_fifo_errors"];

/// The counters at one moment; `None` where one could not be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Drops {
    backlog: Option<u64>,
    squeezed: Option<u64>,
    /// Packets that the kernel's receiving has taken.
    packets: Option<u64>,
    sockets: Option<u64>,
    /// By card.
    cards: Vec<(String, u64)>,
    /// How long they were watched until now, if at all.
    watched: Option<Duration>,
}

/// One counter at two moments.
#[derive(Debug)]
pub(super) struct Watched {
    finding: Finding,
    /// In the plural.
    what: &'static str,
    total: Option<u64>,
    /// How much it grew in how long; `None` if it was not watched.
    grown: Option<(u64, Duration)>,
    /// By how much it must grow to matter.
    least: u64,
    why: &'static str,
    fix: String,
}

impl Drops {
    /// Reads them.
    pub(super) fn read(root: &Root) -> Self {
        let card = |name: String| {
            let counts = CARD_DROPS.iter().filter_map(|counter| {
                root.value::<u64>(&format!("{CARDS}/{name}/statistics/{counter}"))
            });
            // Some drivers count one packet under both names.
            Some((name.clone(), counts.max()?))
        };
        Self {
            backlog: softnet(root, 1),
            squeezed: softnet(root, 2),
            packets: softnet(root, 0),
            sockets: sockets(root),
            cards: root.names(CARDS).into_iter().filter_map(card).collect(),
            watched: None,
        }
    }

    /// The same, `time` ago.
    pub(super) fn ago(self, time: Duration) -> Self {
        Self {
            watched: Some(time),
            ..self
        }
    }

    /// Each counter with what became of it until now.
    pub(super) fn watched(&self, root: &Root) -> Vec<Watched> {
        let now = Self::read(root);
        let grown = |then: Option<u64>, now: Option<u64>| {
            // A card or core that came or went between the two may make a sum fall.
            Some((now?.saturating_sub(then?), self.watched?))
        };
        let backlog: u64 = root
            .value(&format!("{CORE}/netdev_max_backlog"))
            .unwrap_or(0);
        let wanted = BACKLOG_WANTED.max(backlog.saturating_mul(2));
        let received = grown(self.packets, now.packets).map_or(0, |(packets, _)| packets);
        let sum = |drops: &Self| {
            let counts = drops.cards.iter().map(|(_, count)| count);
            (!drops.cards.is_empty()).then(|| counts.sum())
        };
        vec![
            Watched {
                finding: Finding::new(GROUP, "backlog drops", SOFTNET),
                what: "packets",
                total: now.backlog,
                grown: grown(self.backlog, now.backlog),
                least: 1,
                why: "dropped before they reached any socket, for netdev_max_backlog was too small",
                fix: format!("sudo sysctl -w net.core.netdev_max_backlog={wanted}"),
            },
            Watched {
                finding: Finding::new(GROUP, "receive rounds cut short", SOFTNET),
                what: "rounds",
                total: now.squeezed,
                grown: grown(self.squeezed, now.squeezed),
                // A few belong to every burst; one in ten thousand packets costs throughput.
                least: 2 + received / 10_000,
                why: "the kernel stopped receiving with packets left, which overflows the card's ring",
                fix: "sudo sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000"
                    .to_owned(),
            },
            Watched {
                finding: Finding::new(GROUP, "UDP buffer drops", SNMP),
                what: "packets",
                total: now.sockets,
                grown: grown(self.sockets, now.sockets),
                least: 1,
                why: "packets of any program that came while its receive buffer was full",
                fix: format!(
                    "sudo sysctl -w net.core.rmem_max={RMEM_WANTED}  # if they were daq's: see kernel_drop in its ledger"
                ),
            },
            Watched {
                finding: Finding::new(
                    GROUP,
                    "card drops",
                    format!("{CARDS}/*/statistics/{}", CARD_DROPS[0]),
                ),
                what: "packets",
                total: sum(&now),
                grown: grown(sum(self), sum(&now)),
                least: 1,
                why: "the card had no free buffer when they came",
                fix: format!(
                    "sudo ethtool -G {0} rx 4096  # or the most that `ethtool -g {0}` shows",
                    self.worst(&now)
                ),
            },
        ]
    }

    /// The card that dropped most since then, or ever.
    fn worst<'a>(&self, now: &'a Self) -> &'a str {
        let grown = |(name, count): &(String, u64)| {
            let then = self.cards.iter().find(|(card, _)| card == name);
            (count - then.map_or(0, |(_, then)| *then.min(count)), *count)
        };
        let worst = now.cards.iter().max_by_key(|card| grown(card));
        worst.map_or("CARD", |(name, _)| name)
    }
}

impl Watched {
    /// The judgement.
    pub(super) fn finding(self) -> Finding {
        let Some(total) = self.total else {
            return self.finding;
        };
        let what = self.what;
        let during = |time: Duration| {
            // To a tenth of a second, but never to nothing.
            let tenths = u64::try_from(time.as_millis().div_ceil(100)).unwrap_or(u64::MAX);
            Span(Duration::from_millis(tenths.saturating_mul(100)))
        };
        match self.grown {
            Some((grown, time)) if grown >= self.least => self
                .finding
                .read(
                    Verdict::Warn,
                    format!("{grown} {what} in {}, {total} since boot", during(time)),
                )
                .why(self.why)
                .fix(self.fix),
            _ if total == 0 => self.finding.read(Verdict::Ok, "none since boot"),
            Some((grown, time)) => {
                let grown = match grown {
                    0 => "none".to_owned(),
                    grown => grown.to_string(),
                };
                self.finding
                    .read(
                        Verdict::Ok,
                        format!("{grown} in {}, {total} since boot", during(time)),
                    )
                    .why("from an earlier time: it does not grow now")
            }
            None => self
                .finding
                .read(Verdict::Ok, format!("{total} {what} since boot"))
                .why("whether it grows now was not looked at: --sample 1s"),
        }
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

/// Packets that found a full receive buffer.
fn sockets(root: &Root) -> Option<u64> {
    let text = root.text(SNMP)?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    let (_, count) = columns.find(|(name, _)| *name == "RcvbufErrors")?;
    count.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::machine;
    use super::*;
    use Verdict::{Ok, Unknown, Warn};

    const SECOND: Duration = Duration::from_secs(1);

    fn snmp(count: u64) -> String {
        format!(
            "Ip: A\nIp: 1\nUdp: InDatagrams RcvbufErrors\nUdp: 687 {count}\nUdpLite: RcvbufErrors\nUdpLite: 9\n"
        )
    }

    /// What is found on a machine that had the files `then` a second ago and has `now`.
    fn find(then: &[(&str, &str)], now: &[(&str, &str)], name: &str) -> Finding {
        let before = Drops::read(&machine(then).1).ago(SECOND);
        named(&before, now, name)
    }

    fn named(before: &Drops, now: &[(&str, &str)], name: &str) -> Finding {
        let (_dir, root) = machine(now);
        let mut findings = before.watched(&root).into_iter().map(Watched::finding);
        findings.find(|finding| finding.name == name).unwrap()
    }

    fn told(finding: &Finding) -> (Verdict, &str) {
        (finding.verdict, &finding.read)
    }

    #[test]
    fn drops_of_all_cores_are_summed() {
        let softnet = |drops: [&str; 2]| {
            let [a, b] = drops;
            format!("00000602 {a} 00000000\n0000280e {b} 00000001\n")
        };
        let (none, some) = (softnet(["00000000"; 2]), softnet(["0000000a", "00000006"]));
        let backlog = ("/proc/sys/net/core/netdev_max_backlog", "20000");
        let find = |then: &str, now: &str| {
            find(
                &[(SOFTNET, then)],
                &[(SOFTNET, now), backlog],
                "backlog drops",
            )
        };
        assert_eq!(told(&find(&none, &none)), (Ok, "none since boot"));
        let found = find(&none, &some);
        assert_eq!(told(&found), (Warn, "16 packets in 1 s, 16 since boot"));
        assert!(found.why.is_some() && found.fix.unwrap().ends_with("=40000"));
        let found = find(&some, &some);
        assert_eq!(told(&found), (Ok, "none in 1 s, 16 since boot"));
        assert!(found.fix.is_none() && found.why.unwrap().contains("does not grow now"));
        assert_eq!(find("x", "x").verdict, Unknown);
        assert_eq!(find("x", &some).verdict, Ok, "nothing to compare with");
        assert_eq!(told(&find(&some, &none)), (Ok, "none since boot"));
    }

    #[test]
    fn what_is_not_watched_is_not_judged() {
        let machine = machine(&[(SNMP, &snmp(1379))]);
        let found = named(
            &Drops::read(&machine.1),
            &[(SNMP, &snmp(1379))],
            "UDP buffer drops",
        );
        assert_eq!(told(&found), (Ok, "1379 packets since boot"));
        assert!(found.why.unwrap().contains("--sample"));
    }

    #[test]
    fn full_sockets_are_evidence() {
        let find = |then, now| {
            find(
                &[(SNMP, &snmp(then))],
                &[(SNMP, &snmp(now))],
                "UDP buffer drops",
            )
        };
        assert_eq!(told(&find(0, 0)), (Ok, "none since boot"));
        assert_eq!(
            told(&find(1379, 1379)),
            (Ok, "none in 1 s, 1379 since boot")
        );
        let found = find(1379, 1384);
        assert_eq!(told(&found), (Warn, "5 packets in 1 s, 1384 since boot"));
        assert!(found.fix.unwrap().contains("net.core.rmem_max="));
        let odd = [(SNMP, "Ip: A\n")];
        assert_eq!(
            super::tests::find(&odd, &odd, "UDP buffer drops").verdict,
            Unknown
        );
    }

    #[test]
    fn rounds_cut_short_are_measured_by_the_packets() {
        let line = |packets: u64, squeezed: u64| format!("{packets:08x} 00000000 {squeezed:08x}\n");
        let find = |packets: u64, squeezed: u64| {
            find(
                &[(SOFTNET, &line(1000, 900))],
                &[(SOFTNET, &line(1000 + packets, 900 + squeezed))],
                "receive rounds cut short",
            )
        };
        assert_eq!(
            told(&find(1_000_000, 0)),
            (Ok, "none in 1 s, 900 since boot")
        );
        assert_eq!(
            told(&find(1_000_000, 101)),
            (Ok, "101 in 1 s, 1001 since boot")
        );
        assert_eq!(
            told(&find(1_000_000, 102)),
            (Warn, "102 rounds in 1 s, 1002 since boot")
        );
        assert_eq!(find(0, 1).verdict, Ok);
        assert_eq!(find(0, 2).verdict, Warn);
    }

    #[test]
    fn the_worst_card_is_named() {
        let path = |card, counter| format!("{CARDS}/{card}/statistics/{counter}");
        let (old, new) = (
            path("eth0", "rx_missed_errors"),
            path("eth1", "rx_fifo_errors"),
        );
        let then = [(old.as_str(), "5000\n"), (new.as_str(), "0\n")];
        let found = find(&then, &then, "card drops");
        assert_eq!(told(&found), (Ok, "none in 1 s, 5000 since boot"));
        let found = find(&then, &[(&old, "5000\n"), (&new, "7\n")], "card drops");
        assert_eq!(told(&found), (Warn, "7 packets in 1 s, 5007 since boot"));
        assert!(found.fix.unwrap().contains("ethtool -G eth1 rx"));
        assert_eq!(find(&[], &[], "card drops").verdict, Unknown);
    }

    #[test]
    fn the_time_is_that_which_passed() {
        let before = Drops {
            sockets: Some(1),
            ..Drops::default()
        };
        for (millis, shown) in [(1000, "1 s"), (1001, "1.1 s"), (250, "0.3 s"), (1, "0.1 s")] {
            let before = before.clone().ago(Duration::from_millis(millis));
            let found = named(&before, &[(SNMP, &snmp(3))], "UDP buffer drops");
            let wanted = format!("2 packets in {shown}, 3 since boot");
            let wanted = wanted.replace("0.3 s", "300 ms").replace("0.1 s", "100 ms");
            assert_eq!(told(&found), (Warn, wanted.as_str()));
        }
    }
}
