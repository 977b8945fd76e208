//! Counts packets that Linux has dropped since boot, and detects whether Linux is dropping packets now.
//!
//! The counters count from boot and never decrease. `daq doctor` reads the counters twice, and only an increase between
//! the two readings is a warning. The two readings are compared for each core and each network card. A counter that
//! appears, disappears or restarts at 0 between the readings does not count as a drop.

use super::check::{Finding, Judgement, Status, check, ok, table, warn};
use super::network::{BACKLOG_WANTED, CORE, GROUP, RMEM_WANTED};
use super::root::Root;
use daq_core::units::Span;
use std::collections::BTreeMap;
use std::time::Duration;

const SOFTNET: &str = "/proc/net/softnet_stat";
const SNMP: &str = "/proc/net/snmp";
const NICS: &str = "/sys/class/net";
const CARDS: &str = "/sys/class/net/*/statistics/rx_missed_errors";
/// Names of the counters of packets that were dropped because no buffer was free. The driver of a network card uses one
/// of these counters.
const CARD_DROPS: [&str; 2] = ["rx_missed_errors", "rx_fifo_errors"];

/// Counters of one core: the number of received packets, the number of packets dropped because the backlog was full,
/// and the number of receive rounds that ended before all packets were processed. These are the first columns of
/// `/proc/net/softnet_stat`, with 32 bits each.
type Core = [u32; 3];
const PACKETS: usize = 0;
const BACKLOG: usize = 1;
const SQUEEZED: usize = 2;

/// The counters at one point in time; `None` if a counter cannot be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Drops {
    /// The counters of each core, by the core's number.
    cores: Option<BTreeMap<u32, Core>>,
    sockets: Option<u64>,
    /// The number of dropped packets of each network card. Virtual devices such as bridges and bonds are excluded,
    /// because their counters include the drops of the cards below them.
    cards: Option<BTreeMap<String, u64>>,
    /// Time between the two readings; `None` if the counters were read only once.
    watched: Option<Duration>,
}

/// The change of one counter between two readings.
#[derive(Debug)]
pub(super) struct CounterChange {
    /// What is counted, as a plural noun.
    pub(super) what: &'static str,
    pub(super) total: u64,
    /// Increase of the counter, and the time between the two readings; `None` if the counter was read only once.
    pub(super) grown: Option<(u64, Duration)>,
    /// Minimum increase that causes a warning.
    pub(super) min: u64,
    pub(super) why: &'static str,
    pub(super) fix: String,
}

impl Drops {
    /// Reads all counters once.
    pub(super) fn read(root: &Root) -> Self {
        let card = |name: String| {
            let counts = CARD_DROPS.iter().filter_map(|counter| {
                root.value::<u64>(&format!("{NICS}/{name}/statistics/{counter}"))
            });
            // Some drivers count one packet under both names, so use the larger counter.
            Some((name.clone(), counts.max()?))
        };
        let is_card = |name: &String| root.exists(&format!("{NICS}/{name}/device"));
        let cards: BTreeMap<_, _> = root
            .names(NICS)
            .into_iter()
            .filter(is_card)
            .filter_map(card)
            .collect();
        Self {
            cores: softnet(root),
            sockets: sockets(root),
            cards: (!cards.is_empty()).then_some(cards),
            watched: None,
        }
    }

    /// Sets the time between this reading and the next reading to `time`.
    pub(super) fn ago(self, time: Duration) -> Self {
        Self {
            watched: Some(time),
            ..self
        }
    }

    /// Reads the counters again and reports each counter with its increase since this reading.
    pub(super) fn watched(&self, root: &Root) -> Vec<Finding> {
        let change = Change {
            root,
            before: self,
            now: Self::read(root),
        };
        let checks = [
            check("backlog drops", SOFTNET, Change::backlog),
            check("receive rounds cut short", SOFTNET, Change::rounds),
            check("UDP buffer drops", SNMP, Change::sockets),
            check("card drops", CARDS, Change::cards),
        ];
        table(GROUP, "", &change, &checks)
    }

    /// Returns the increase of the counter `column` between this reading and `now`, summed over the cores that are in
    /// both readings.
    fn cores_grown(&self, now: &Self, column: usize) -> Option<u64> {
        let (then, now) = (self.cores.as_ref()?, now.cores.as_ref()?);
        let grown = then.iter().filter_map(|(core, then)| {
            let grown = now.get(core)?[column].wrapping_sub(then[column]);
            // The counter wraps around at 32 bits. An apparent increase by more than half the range means that the
            // counter was reset.
            Some(u64::from(if grown > u32::MAX / 2 { 0 } else { grown }))
        });
        Some(grown.sum())
    }

    /// Returns the sum of the counter `column` over all cores.
    fn core_total(&self, column: usize) -> Option<u64> {
        let cores = self.cores.as_ref()?.values();
        Some(cores.map(|core| u64::from(core[column])).sum())
    }

    /// Returns the number of packets dropped between this reading and `now`, summed over the network cards that are in
    /// both readings.
    fn cards_grown(&self, now: &Self) -> Option<u64> {
        let (then, now) = (self.cards.as_ref()?, now.cards.as_ref()?);
        let grown = then
            .iter()
            .filter_map(|(card, then)| Some(now.get(card)?.saturating_sub(*then)));
        Some(grown.sum())
    }

    /// Returns the network card with the largest increase, or with the largest total if no counter increased.
    fn worst<'a>(&self, now: &'a Self) -> &'a str {
        let grown = |(name, count): &(&String, &u64)| {
            let then = self.cards.as_ref().and_then(|cards| cards.get(*name));
            (then.map_or(0, |then| count.saturating_sub(*then)), **count)
        };
        let worst = now.cards.iter().flatten().max_by_key(grown);
        worst.map_or("CARD", |(name, _)| name)
    }
}

/// Two readings of the counters.
struct Change<'a> {
    root: &'a Root,
    before: &'a Drops,
    now: Drops,
}

impl Change<'_> {
    /// Returns the increase of a counter and the time between the two readings.
    fn grown(&self, grown: Option<u64>) -> Option<(u64, Duration)> {
        Some((grown?, self.before.watched?))
    }

    fn cores_grown(&self, column: usize) -> Option<u64> {
        self.before.cores_grown(&self.now, column)
    }

    fn backlog(&self) -> Option<Judgement> {
        let backlog = self.root.value(&format!("{CORE}/netdev_max_backlog"));
        let wanted = BACKLOG_WANTED.max(backlog.unwrap_or(0_u64).saturating_mul(2));
        let change = CounterChange {
            what: "packets",
            total: self.now.core_total(BACKLOG)?,
            grown: self.grown(self.cores_grown(BACKLOG)),
            min: 1,
            why: "Linux dropped packets before they reached a socket, because netdev_max_backlog is too small",
            fix: format!("sudo sysctl -w net.core.netdev_max_backlog={wanted}"),
        };
        Some(change.judge())
    }

    fn rounds(&self) -> Option<Judgement> {
        let change = CounterChange {
            what: "rounds",
            total: self.now.core_total(SQUEEZED)?,
            grown: self.grown(self.cores_grown(SQUEEZED)),
            // Single events occur in every burst. More than one event per ten thousand packets reduces throughput.
            min: 2 + self.cores_grown(PACKETS).unwrap_or(0) / 10_000,
            why: "Linux ended a receive round while packets were still waiting, so the card's receive ring can overflow",
            fix: "sudo sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000"
                .to_owned(),
        };
        Some(change.judge())
    }

    fn sockets(&self) -> Option<Judgement> {
        let total = self.now.sockets?;
        let before = self.before.sockets;
        let change = CounterChange {
            what: "packets",
            total,
            grown: self.grown(before.map(|before| total.saturating_sub(before))),
            min: 1,
            why: "packets arrived while the receive buffer of a program (not only daq) was full",
            fix: format!(
                "sudo sysctl -w net.core.rmem_max={RMEM_WANTED}  # needed only if daq lost packets, see kernel_drop in daq's ledger"
            ),
        };
        Some(change.judge())
    }

    fn cards(&self) -> Option<Judgement> {
        let Some(cards) = &self.now.cards else {
            return Some(Judgement::new(Status::Unknown, "no hardware card found"));
        };
        let change = CounterChange {
            what: "packets",
            total: cards.values().sum(),
            grown: self.grown(self.before.cards_grown(&self.now)),
            min: 1,
            why: "the network card had no free buffer when the packets arrived",
            fix: format!(
                "sudo ethtool -G {0} rx 4096  # or the maximum that `ethtool -g {0}` shows",
                self.before.worst(&self.now)
            ),
        };
        Some(change.judge())
    }
}

impl CounterChange {
    pub(super) fn judge(self) -> Judgement {
        let Self { what, total, .. } = self;
        let during = |time: Duration| {
            // Round up to a tenth of a second.
            let tenths = u64::try_from(time.as_millis().div_ceil(100)).unwrap_or(u64::MAX);
            Span(Duration::from_millis(tenths.saturating_mul(100)))
        };
        match self.grown {
            Some((grown, time)) if grown >= self.min => warn(
                format!("{grown} {what} in {}, {total} since boot", during(time)),
                self.why,
                self.fix,
            ),
            _ if total == 0 => ok("none since boot"),
            Some((0, time)) => ok(format!("none in {}, {total} since boot", during(time)))
                .why("the counter grew earlier but is not growing now"),
            Some((grown, time)) => ok(format!("{grown} in {}, {total} since boot", during(time)))
                .why("the counter grows, but too slowly to matter"),
            None => ok(format!("{total} {what} since boot"))
                .why("growth was not measured; run daq doctor --sample 1s"),
        }
    }
}

/// Reads the counters of each core.
fn softnet(root: &Root) -> Option<BTreeMap<u32, Core>> {
    /// The column in which newer Linux versions report the core's number. Cores that are offline have no line.
    const NUMBER: usize = 12;
    let mut cores = BTreeMap::new();
    for (line, text) in (0..).zip(root.text(SOFTNET)?.lines()) {
        let columns = text.split_whitespace();
        let columns: Result<Vec<_>, _> =
            columns.map(|text| u32::from_str_radix(text, 16)).collect();
        let columns = columns.ok()?;
        let core = columns.get(NUMBER).copied().unwrap_or(line);
        cores.insert(core, *columns.first_chunk()?);
    }
    Some(cores)
}

/// Returns the number of packets dropped because a receive buffer was full.
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
    use super::super::tests::one;
    use super::*;
    use crate::doctor::Status::{Ok, Unknown, Warning as Warn};

    const SECOND: Duration = Duration::from_secs(1);

    fn snmp(count: u64) -> String {
        format!(
            "Ip: A\nIp: 1\nUdp: InDatagrams RcvbufErrors\nUdp: 687 {count}\nUdpLite: RcvbufErrors\nUdpLite: 9\n"
        )
    }

    /// Returns the finding `name` of a machine whose files were `then` one second ago and are `now` at present.
    fn find(then: &[(&str, &str)], now: &[(&str, &str)], name: &str) -> Finding {
        let before = Drops::read(&machine(then).1).ago(SECOND);
        named(&before, now, name)
    }

    fn named(before: &Drops, now: &[(&str, &str)], name: &str) -> Finding {
        let (_dir, root) = machine(now);
        one(&before.watched(&root), name)
    }

    #[test]
    fn core_drops_are_summed() {
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
        assert_eq!(find(&none, &none).summary(), (Ok, "none since boot"));
        let found = find(&none, &some);
        assert_eq!(found.summary(), (Warn, "16 packets in 1 s, 16 since boot"));
        assert!(found.why.is_some() && found.fix.unwrap().ends_with("=40000"));
        let found = find(&some, &some);
        assert_eq!(found.summary(), (Ok, "none in 1 s, 16 since boot"));
        assert!(found.fix.is_none() && found.why.unwrap().contains("is not growing now"));
        assert_eq!(find("x", "x").status, Unknown);
        assert_eq!(find("x", &some).status, Ok, "nothing to compare with");
        assert_eq!(find(&some, &none).summary(), (Ok, "none since boot"));
    }

    #[test]
    fn core_counters_survive_wrap_and_hotplug() {
        let line = |core: u32, drops: u32| {
            let zeroes = "00000000 ".repeat(10);
            format!("00000602 {drops:08x} {zeroes}{core:08x} 00000000 00000000\n")
        };
        let find = |then: &[(u32, u32)], now: &[(u32, u32)]| {
            let text = |cores: &[(u32, u32)]| -> String {
                cores
                    .iter()
                    .map(|(core, drops)| line(*core, *drops))
                    .collect()
            };
            let found = find(
                &[(SOFTNET, &text(then))],
                &[(SOFTNET, &text(now))],
                "backlog drops",
            );
            (found.status, found.read)
        };
        let read = |status, text: &str| (status, text.to_owned());
        // The counter of core 1 has wrapped around at 32 bits; core 1 has dropped 3 packets.
        assert_eq!(
            find(&[(0, u32::MAX), (1, 7)], &[(0, 2), (1, 7)]),
            read(Warn, "3 packets in 1 s, 9 since boot")
        );
        // Drops of core 2 from before it went offline do not count. The counter of core 1 does not hide that of core 0.
        assert_eq!(
            find(&[(0, 5), (1, 9)], &[(0, 5), (2, 500)]),
            read(Ok, "none in 1 s, 505 since boot")
        );
        assert_eq!(
            find(&[(0, 5), (1, 9)], &[(1, 9)]),
            read(Ok, "none in 1 s, 9 since boot")
        );
    }

    #[test]
    fn unwatched_counter_is_not_judged() {
        let machine = machine(&[(SNMP, &snmp(1379))]);
        let found = named(
            &Drops::read(&machine.1),
            &[(SNMP, &snmp(1379))],
            "UDP buffer drops",
        );
        assert_eq!(found.summary(), (Ok, "1379 packets since boot"));
        assert!(found.why.unwrap().contains("--sample"));
    }

    #[test]
    fn socket_drops_are_reported() {
        let find = |then, now| {
            find(
                &[(SNMP, &snmp(then))],
                &[(SNMP, &snmp(now))],
                "UDP buffer drops",
            )
        };
        assert_eq!(find(0, 0).summary(), (Ok, "none since boot"));
        assert_eq!(
            find(1379, 1379).summary(),
            (Ok, "none in 1 s, 1379 since boot")
        );
        let found = find(1379, 1384);
        assert_eq!(found.summary(), (Warn, "5 packets in 1 s, 1384 since boot"));
        assert!(found.fix.unwrap().contains("net.core.rmem_max="));
        let odd = [(SNMP, "Ip: A\n")];
        assert_eq!(
            super::tests::find(&odd, &odd, "UDP buffer drops").status,
            Unknown
        );
    }

    #[test]
    fn budget_exhaustion_is_compared_with_packet_count() {
        let line = |packets: u64, squeezed: u64| format!("{packets:08x} 00000000 {squeezed:08x}\n");
        let find = |packets: u64, squeezed: u64| {
            find(
                &[(SOFTNET, &line(1000, 900))],
                &[(SOFTNET, &line(1000 + packets, 900 + squeezed))],
                "receive rounds cut short",
            )
        };
        assert_eq!(
            find(1_000_000, 0).summary(),
            (Ok, "none in 1 s, 900 since boot")
        );
        assert_eq!(
            find(1_000_000, 101).summary(),
            (Ok, "101 in 1 s, 1001 since boot")
        );
        assert_eq!(
            find(1_000_000, 102).summary(),
            (Warn, "102 rounds in 1 s, 1002 since boot")
        );
        assert_eq!(find(0, 1).status, Ok);
        assert_eq!(find(0, 2).status, Warn);
        assert!(find(0, 0).why.unwrap().contains("is not growing now"));
        assert!(find(0, 1).why.unwrap().contains("grows, but too slowly"));
    }

    #[test]
    fn interface_with_most_drops_is_named() {
        let path = |card, counter| format!("{NICS}/{card}/statistics/{counter}");
        let (old, new) = (
            path("eth0", "rx_missed_errors"),
            path("eth1", "rx_fifo_errors"),
        );
        let bond = path("bond0", "rx_missed_errors");
        let device = |card| (format!("{NICS}/{card}/device/vendor"), "0x15b3\n");
        let devices = [device("eth0"), device("eth1")];
        let find = |then: [&str; 3], now: [&str; 3]| {
            let machine = |[a, b, c]: [&str; 3]| -> Vec<(String, String)> {
                let counts = [(&old, a), (&new, b), (&bond, c)];
                let counts = counts.map(|(path, text)| (path.clone(), text.to_owned()));
                let devices = devices.clone().map(|(path, text)| (path, text.to_owned()));
                counts.into_iter().chain(devices).collect()
            };
            fn lent(files: &[(String, String)]) -> Vec<(&str, &str)> {
                files
                    .iter()
                    .map(|(path, text)| (&**path, &**text))
                    .collect()
            }
            super::tests::find(&lent(&machine(then)), &lent(&machine(now)), "card drops")
        };
        let then = ["5000\n", "0\n", "5000\n"];
        let found = find(then, then);
        assert_eq!(found.summary(), (Ok, "none in 1 s, 5000 since boot"));
        // A bond repeats the counters of its cards.
        let found = find(then, ["5000\n", "7\n", "5007\n"]);
        assert_eq!(found.summary(), (Warn, "7 packets in 1 s, 5007 since boot"));
        assert!(found.fix.unwrap().contains("ethtool -G eth1 rx"));
        let only_virtual = [(bond.as_str(), "9\n")];
        let found = super::tests::find(&only_virtual, &only_virtual, "card drops");
        assert_eq!(found.summary(), (Unknown, "no hardware card found"));
    }

    #[test]
    fn interval_is_measured_elapsed_time() {
        let before = Drops {
            sockets: Some(1),
            ..Drops::default()
        };
        for (millis, shown) in [(1000, "1 s"), (1001, "1.1 s"), (250, "0.3 s"), (1, "0.1 s")] {
            let before = before.clone().ago(Duration::from_millis(millis));
            let found = named(&before, &[(SNMP, &snmp(3))], "UDP buffer drops");
            let wanted = format!("2 packets in {shown}, 3 since boot");
            let wanted = wanted.replace("0.3 s", "300 ms").replace("0.1 s", "100 ms");
            assert_eq!(found.summary(), (Warn, wanted.as_str()));
        }
    }
}
