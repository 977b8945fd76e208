//! Hints for the log if no packet arrives.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Returns a log hint on why no packets arrive at sockets that listen on `listen` and join `groups`. `is_filtered` is true
/// if the source accepts only packets from the senders in `from`.
pub(crate) fn hint(
    listen: &[SocketAddr],
    groups: &[IpAddr],
    interface: Option<&str>,
    is_filtered: bool,
) -> String {
    let bound = listen
        .iter()
        .map(SocketAddr::ip)
        .filter(IpAddr::is_multicast);
    let groups: Vec<_> = bound.chain(groups.iter().copied()).collect();
    // Linux selects the port of a socket that listens on port 0, so packets to any port are shown.
    let filter = match listen.first().map_or(0, SocketAddr::port) {
        0 => "udp".to_owned(),
        port => format!("udp port {port}"),
    };
    let device = interface
        .filter(|interface| interface.parse::<Ipv4Addr>().is_err())
        .unwrap_or("any");
    let mut hint = String::new();
    for group in &groups {
        let joined = match joined(*group).as_slice() {
            [] => "is joined on no interface".to_owned(),
            interfaces => format!("is joined on {}", interfaces.join(", ")),
        };
        let _ = write!(hint, "group {group} {joined}; ");
    }
    if !groups.is_empty() {
        hint += "set `interface` to the interface that faces the sender, and check whether the switch forwards the \
                 group (IGMP snooping needs a querier); ";
    }
    let _ = write!(
        hint,
        "`sudo tcpdump -ni {device} {filter}` shows whether packets reach this machine: if they do, check {}; \
         if not, check the sender, its destination port, cables and routes",
        if is_filtered {
            "the firewall (`sudo nft list ruleset`), the destination address of the packets, and whether `from` lists \
             their sender"
        } else {
            "the firewall (`sudo nft list ruleset`) and the destination address of the packets"
        }
    );
    hint
}

/// Returns the interfaces on which this host has joined `group`.
fn joined(group: IpAddr) -> Vec<String> {
    let file = match group {
        IpAddr::V4(_) => "/proc/net/igmp",
        IpAddr::V6(_) => "/proc/net/igmp6",
    };
    let text = std::fs::read_to_string(file).unwrap_or_default();
    match group {
        IpAddr::V4(group) => joined_ipv4(&text, group),
        IpAddr::V6(group) => {
            let digits = format!("{:032x}", group.to_bits());
            let lines = text
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines
                .filter(|fields| fields.get(2) == Some(&digits.as_str()))
                .map(|fields| fields[1].to_owned())
                .collect()
        }
    }
}

/// Returns the interfaces with `group` in the text of `/proc/net/igmp`. The file has a line for each interface,
/// followed by an indented line for each of its groups. The address of a group is printed as a number in host byte
/// order.
fn joined_ipv4(text: &str, group: Ipv4Addr) -> Vec<String> {
    let digits = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let (mut interfaces, mut interface) = (Vec::new(), "");
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        if !line.starts_with(char::is_whitespace) {
            interface = fields.nth(1).unwrap_or_default().trim_end_matches(':');
        } else if fields.next() == Some(&digits) {
            interfaces.push(interface.to_owned());
        }
    }
    interfaces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_hint_names_interface_firewall_and_port() {
        let listen = ["0.0.0.0:4950".parse().unwrap()];
        let group = "239.77.66.55".parse().unwrap();
        let hint = hint(&listen, &[group], Some("eth1"), false);
        for part in [
            "group 239.77.66.55 is joined on no interface",
            "`interface`",
            "tcpdump -ni eth1 udp port 4950",
            "nft list ruleset`) and the destination address of the packets",
        ] {
            assert!(hint.contains(part), "{part:?} is not in {hint:?}");
        }
        let any = ["127.0.0.1:0".parse().unwrap()];
        let any_port = super::hint(&any, &[], None, false);
        assert!(any_port.contains("tcpdump -ni any udp`"), "{any_port}");
        let unicast = super::hint(&listen, &[], None, true);
        assert!(
            !unicast.contains("group")
                && unicast.contains("-ni any")
                && unicast.contains("whether `from` lists their sender")
        );
    }

    #[test]
    fn joined_groups_are_found_in_proc() {
        let own = u32::from_ne_bytes([239, 1, 2, 3]);
        let text = format!(
            "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
             1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
             2\teth1      :     2      V3\n\t\t\t\t{own:08X}     1 0:00000000\t\t0\n"
        );
        assert_eq!(joined_ipv4(&text, Ipv4Addr::new(239, 1, 2, 3)), ["eth1"]);
        assert_eq!(joined_ipv4(&text, Ipv4Addr::new(239, 1, 2, 4)), [""; 0]);
    }
}
