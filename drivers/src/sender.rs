//! The senders that a source allows, and the senders that it has observed.

use daq_core::config::Problem;
use daq_core::config::{List, Listed};
use daq_core::log_limit::LogLimit;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of entries of a list, because a Linux filter compares each packet with every entry.
pub(crate) const MAX_ALLOWED: usize = 64;
/// Maximum number of senders that are remembered for log messages.
const MAX_KNOWN: usize = 16;
/// Number of changes between two streams of numbers after which they are logged as two senders. A sender that restarts begins
/// with other numbers.
pub(crate) const MIN_ALTERNATIONS: u64 = 3;
/// Number of batches after a duplicate packet in which the addresses of all senders are read.
const ATTENTIVE_BATCHES: u32 = 1024;

/// An address, a network, or an address with a port, from which a source accepts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The address, or the first address of the network.
    pub network: IpAddr,
    /// Number of leading address bits that are compared.
    pub prefix: u8,
    /// The port; `None` for any port.
    pub port: Option<u16>,
}

/// Returns the addresses that `allowed` names. A network does not name addresses, so then there are none.
pub(crate) fn addresses(allowed: &[Allowed]) -> Vec<IpAddr> {
    if !allowed.iter().all(Allowed::is_host) {
        return Vec::new();
    }
    allowed.iter().map(|allowed| allowed.network).collect()
}

/// Returns the 32-bit words of an address for comparison: one for IPv4, four for IPv6.
pub(crate) fn words(address: IpAddr) -> Vec<u32> {
    match address {
        IpAddr::V4(address) => vec![address.to_bits()],
        IpAddr::V6(address) => {
            let octets = address.octets();
            let words = octets.as_chunks::<4>().0;
            words.iter().map(|word| u32::from_be_bytes(*word)).collect()
        }
    }
}

impl Allowed {
    /// Returns the index, value and mask of each address word that must be compared.
    pub fn comparisons(&self) -> Vec<(usize, u32, u32)> {
        let prefix = u32::from(self.prefix);
        let words = words(self.network).into_iter().enumerate();
        words
            .map(|(i, word)| {
                let before = u32::try_from(i).unwrap_or(0) * 32;
                let bits = prefix.saturating_sub(before).min(32);
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                (i, word, mask)
            })
            .filter(|(_, _, mask)| *mask != 0)
            .collect()
    }

    /// Returns whether this is a single address.
    pub const fn is_host(&self) -> bool {
        self.prefix == if self.network.is_ipv4() { 32 } else { 128 }
    }

    /// Returns whether packets from `sender` are accepted.
    pub fn contains(&self, sender: SocketAddr) -> bool {
        let address = sender.ip().to_canonical();
        let words = words(address);
        address.is_ipv4() == self.network.is_ipv4()
            && self.port.is_none_or(|port| port == sender.port())
            && self
                .comparisons()
                .iter()
                .all(|(i, word, mask)| words[*i] & mask == *word)
    }
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let whole = |address: IpAddr, port| {
            let network = address.to_canonical();
            Self {
                network,
                prefix: bits(network),
                port,
            }
        };
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(whole(address, None));
        }
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Ok(whole(socket.ip(), Some(socket.port())));
        }
        let network = text.split_once('/').and_then(|(address, prefix)| {
            let (network, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
            let whole = bits(network);
            // IPv4 senders are compared as IPv4 addresses, so an IPv4-mapped entry (::ffff:10.1.0.0/112) is converted
            // to IPv4.
            let canonical = network.to_canonical();
            let (network, dropped) = match whole - bits(canonical) {
                dropped if prefix >= dropped => (canonical, dropped),
                _ => (network, 0),
            };
            (prefix <= whole).then(|| Self {
                network,
                prefix: prefix - dropped,
                port: None,
            })
        });
        let Some(network) = network else {
            return Err(format!(
                "\"{text}\" is neither an address (\"10.0.0.5\"), a network (\"10.1.0.0/16\") nor an address and a port \
                 (\"10.0.0.5:4000\", \"[fd00::5]:4000\")"
            ));
        };
        let own = words(network.network);
        let compared = network.comparisons();
        let kept = |i: usize| {
            compared
                .iter()
                .find(|(at, _, _)| *at == i)
                .map_or(0, |c| c.2)
        };
        if (0..own.len()).any(|i| own[i] & !kept(i) != 0) {
            return Err(format!(
                "\"{text}\" has address bits beyond its prefix: set the first address of the network, or an address \
                 without a prefix"
            ));
        }
        Ok(network)
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.network, port).fmt(f),
            None if self.prefix == 32 && self.network.is_ipv4() || self.prefix == 128 => {
                self.network.fmt(f)
            }
            None => write!(f, "{}/{}", self.network, self.prefix),
        }
    }
}

impl Listed for Allowed {
    const NAME: &'static str = "From";
    const WHAT: &'static str =
        "an address, a network such as \"10.1.0.0/16\", or an address and a port";
    const EXAMPLES: [&'static str; 2] = ["10.0.0.5", "10.1.0.0/16"];
}

/// Returns the problems of the key `from` of a source that listens on `listen`.
pub(crate) fn problems(from: Option<&List<Allowed>>, listen: &[SocketAddr]) -> Vec<Problem> {
    let Some(List(allowed)) = from else {
        return Vec::new();
    };
    let mut found = Vec::new();
    if !(1..=MAX_ALLOWED).contains(&allowed.len()) {
        let message = format!(
            "`from` has {} senders, but must have 1 to {MAX_ALLOWED}",
            allowed.len()
        );
        let help = "omit `from` to accept every sender, or combine addresses to networks";
        found.push(Problem::at("from", message).help(help));
    }
    for address in listen {
        let is_same = |entry: &Allowed| entry.network.is_ipv4() == address.is_ipv4();
        if !allowed.is_empty() && !allowed.iter().any(is_same) {
            let message = format!(
                "`from` has no sender with the IP version of {address}, so this address would receive nothing"
            );
            let help = "add an IPv4 sender for an IPv4 address of `listen`, an IPv6 sender for an IPv6 address";
            found.push(Problem::at("from", message).help(help));
            break;
        }
    }
    found
}

/// Returns a description of the allowed senders for the plan, or `None` if every sender is allowed.
pub(crate) fn note(from: Option<&List<Allowed>>) -> Option<String> {
    let names: Vec<_> = from?.0.iter().map(Allowed::to_string).collect();
    Some(format!(
        "packets from senders other than {} are dropped",
        names.join(", ")
    ))
}

/// Returns the index of the message that contains packet `packet` of a batch. `packets` are the numbers of packets per
/// message.
#[cold]
pub(crate) fn message_of(packets: impl Iterator<Item = usize>, packet: usize) -> usize {
    let mut end = 0;
    packets
        .take_while(|count| {
            end += count;
            end <= packet
        })
        .count()
}

/// A sender and its destination address.
type Flow = (SocketAddr, SocketAddr);

/// The senders of a source, shared by its threads. The list is locked only when a thread observes an unknown sender.
#[derive(Debug)]
struct Shared {
    source: String,
    new_senders: LogLimit,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    flows: Vec<Flow>,
    is_duplicate_logged: bool,
    are_alternations_logged: bool,
}

/// The senders that one thread of a source has observed.
#[derive(Clone, Debug)]
pub(crate) struct SenderWatch {
    shared: Arc<Shared>,
    local: SocketAddr,
    last: Option<SocketAddr>,
    /// Senders that this thread has observed, at most [`MAX_KNOWN`].
    known: Vec<SocketAddr>,
    attentive: u32,
    /// Whether duplicates from two senders were logged. If so, the addresses of duplicates are no longer needed.
    is_duplicate_logged: bool,
    /// Whether it was logged that the numbers alternate.
    are_alternations_logged: bool,
}

impl SenderWatch {
    /// Creates the state for the first thread of `source`, which receives on `local`.
    pub(crate) fn new(source: &str, local: SocketAddr) -> Self {
        let seen = Seen {
            flows: Vec::with_capacity(MAX_KNOWN),
            ..Seen::default()
        };
        Self {
            shared: Arc::new(Shared {
                source: source.to_owned(),
                new_senders: LogLimit::new(),
                seen: Mutex::new(seen),
            }),
            local,
            last: None,
            known: Vec::with_capacity(MAX_KNOWN),
            attentive: 0,
            is_duplicate_logged: false,
            are_alternations_logged: false,
        }
    }

    /// Creates the state for another thread of the same source, which receives on `local`.
    #[must_use]
    pub(crate) fn another(&self, local: SocketAddr) -> Self {
        Self {
            local,
            last: None,
            known: Vec::with_capacity(MAX_KNOWN),
            ..self.clone()
        }
    }

    /// Returns whether the addresses of all messages of the next batch are needed, instead of only the first.
    #[inline]
    pub(crate) fn wants_all(&mut self) -> bool {
        let wants = self.attentive > 0;
        self.attentive = self.attentive.saturating_sub(1);
        wants
    }

    /// Records that a message arrived from `sender`.
    #[inline]
    pub(crate) fn saw(&mut self, sender: Option<SocketAddr>) {
        if sender.is_some() && sender != self.last {
            self.last = sender;
            self.meet(sender);
        }
    }

    #[cold]
    fn meet(&mut self, sender: Option<SocketAddr>) {
        let Some(sender) = sender else { return };
        if self.known.len() == MAX_KNOWN || self.known.contains(&sender) {
            return;
        }
        self.known.push(sender);
        let mut seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let first = seen.flows.first().map(|(first, _)| *first);
        let is_new = seen
            .flows
            .iter()
            .all(|(known, _)| known.ip() != sender.ip());
        if seen.flows.len() < MAX_KNOWN {
            seen.flows.push((sender, self.local));
        }
        let Some(first) = first.filter(|_| is_new) else {
            return;
        };
        drop(seen);
        self.shared.new_senders.run(|suppressed| {
            tracing::warn!(
                "source {}: packets arrive from more than one address: from {first} and {sender}; if only some senders \
                 belong to this source, list them in `from`{suppressed}",
                self.shared.source,
            );
        });
    }

    /// Records that a duplicate packet arrived from `sender`, if its address is known.
    #[cold]
    pub(crate) fn duplicate(&mut self, sender: Option<SocketAddr>) {
        if self.is_duplicate_logged {
            return;
        }
        self.attentive = ATTENTIVE_BATCHES;
        let Some(sender) = sender.or_else(|| self.only_known()) else {
            return;
        };
        self.meet(Some(sender));
        let mut seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if seen.is_duplicate_logged {
            (self.is_duplicate_logged, self.attentive) = (true, 0);
            return;
        }
        let own = (sender, self.local);
        let other = seen.flows.iter().find(|flow| **flow != own).copied();
        let Some((other, other_local)) = other else {
            return;
        };
        seen.is_duplicate_logged = true;
        drop(seen);
        tracing::warn!(
            "source {}: packets from {sender} (to {}) have numbers that arrived before, and are dropped as duplicates; \
             {other} (to {other_local}) also sends to this source. If both send parts of the same frames (modules, antennas), \
             set `part` in the format, and `frame` if packets state the number of their frame. If the senders are independent, \
             configure a separate source for each, or set `from` to accept only one",
            self.shared.source,
            self.local,
        );
    }

    /// Records that the numbers have alternated `times` times between two streams.
    #[inline]
    pub(crate) fn alternated(&mut self, times: u64) {
        if times >= MIN_ALTERNATIONS && !self.are_alternations_logged {
            self.log_alternations(times);
        }
    }

    #[cold]
    fn log_alternations(&mut self, times: u64) {
        self.attentive = ATTENTIVE_BATCHES;
        let mut seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if seen.are_alternations_logged {
            self.are_alternations_logged = true;
            return;
        }
        let senders = match seen.flows.as_slice() {
            [first, .., last] => format!("{} and {} send to this source", first.0, last.0),
            // Another sender may not be known yet.
            [_] | [] if times < 4 * MIN_ALTERNATIONS => return,
            [(only, _)] => format!("only {only} sends to this source"),
            [] => "the address of the sender is unknown".to_owned(),
        };
        seen.are_alternations_logged = true;
        drop(seen);
        tracing::warn!(
            "source {}: packet numbers alternate between two streams; {senders}. Each change begins an epoch. Configure a \
             separate source for each stream, or set `from` to accept only one sender",
            self.shared.source,
        );
    }

    /// Returns the sender, if this thread has observed exactly one.
    fn only_known(&self) -> Option<SocketAddr> {
        match self.known.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_senders_are_addresses_networks_and_sockets() {
        let cases = [
            ("10.0.0.5", "10.0.0.5:1", true),
            ("10.0.0.5", "10.0.0.6:1", false),
            ("10.0.0.5:7", "10.0.0.5:7", true),
            ("10.0.0.5:7", "10.0.0.5:8", false),
            ("10.1.0.0/16", "10.1.255.255:1", true),
            ("10.1.0.0/16", "10.2.0.0:1", false),
            ("10.1.0.0/16", "[::ffff:10.1.0.9]:1", true),
            ("0.0.0.0/0", "192.0.2.1:1", true),
            ("0.0.0.0/0", "[fd00::1]:1", false),
            ("fd00::/8", "[fdff::1]:1", true),
            ("[fd00::1]:4000", "[fd00::1]:4001", false),
            ("fd00::/8", "[fe80::1]:1", false),
            ("2001:db8:0:8000::/49", "[2001:db8:0:8001::1]:1", true),
            ("2001:db8:0:8000::/49", "[2001:db8:0:7fff::1]:1", false),
        ];
        for (allowed, sender, is_in) in cases {
            let parsed: Allowed = allowed.parse().unwrap();
            assert_eq!(parsed.to_string(), allowed);
            let found = parsed.contains(sender.parse().unwrap());
            assert_eq!(found, is_in, "{sender} in {allowed}");
        }
    }

    #[test]
    fn ipv4_addresses_in_ipv6_form_are_ipv4() {
        for (text, normal) in [
            ("::ffff:10.0.0.5", "10.0.0.5"),
            ("[::ffff:10.0.0.5]:7", "10.0.0.5:7"),
            ("::ffff:10.1.0.0/112", "10.1.0.0/16"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
        ] {
            let parsed: Allowed = text.parse().unwrap();
            assert_eq!(parsed.to_string(), normal);
            let sender = normal.parse::<Allowed>().unwrap().network;
            assert!(parsed.contains(SocketAddr::new(sender, 7)), "{text}");
        }
    }

    #[test]
    fn invalid_sender_is_rejected_with_example() {
        for text in [
            "",
            "10.0.0",
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0.0/8:7",
            "host",
        ] {
            let error = text.parse::<Allowed>().unwrap_err();
            assert!(error.contains("10.1.0.0/16"), "{error}");
        }
        for text in ["10.1.2.3/16", "fd00::1/64", "10.0.0.1/0"] {
            let error = text.parse::<Allowed>().unwrap_err();
            assert!(error.contains("bits beyond its prefix"), "{error}");
        }
    }

    #[test]
    fn sender_list_that_rejects_everything_is_reported() {
        let list = |texts: &[&str]| List(texts.iter().map(|text| text.parse().unwrap()).collect());
        let four: SocketAddr = "0.0.0.0:4950".parse().unwrap();
        let six: SocketAddr = "[::]:4950".parse().unwrap();
        let count =
            |texts: &[&str], listen: &[SocketAddr]| problems(Some(&list(texts)), listen).len();
        assert_eq!(problems(None, &[four]).len(), 0);
        assert_eq!(count(&["10.0.0.5"], &[four]), 0);
        assert_eq!(count(&["10.0.0.5"], &[four, six]), 1);
        assert_eq!(count(&["10.0.0.5", "fd00::/8"], &[four, six]), 0);
        assert_eq!(count(&[], &[four]), 1);
        assert_eq!(count(&["10.0.0.5"; MAX_ALLOWED + 1], &[four]), 1);
    }

    #[test]
    fn duplicate_from_second_sender_is_logged_once() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut first = SenderWatch::new("adc", address("0.0.0.0:4950"));
        let mut second = first.another(address("0.0.0.0:4951"));
        let is_logged = |watch: &SenderWatch| watch.shared.seen.lock().unwrap().is_duplicate_logged;
        first.saw(Some(address("10.0.0.5:1")));
        // The network repeats packets: there is only one sender.
        first.duplicate(Some(address("10.0.0.5:1")));
        assert!(!is_logged(&first) && first.wants_all() && !second.wants_all());
        // Packets of the same sender to another port are a different flow.
        second.saw(Some(address("10.0.0.5:1")));
        second.duplicate(None);
        assert!(is_logged(&first));
        // After the report, no more addresses are needed.
        second.duplicate(None);
        assert!(!second.wants_all());
    }

    #[test]
    fn packets_are_located_in_messages() {
        let found = [0, 1, 2, 3, 6, 7].map(|packet| message_of([1, 2, 4].into_iter(), packet));
        assert_eq!(found, [0, 1, 1, 2, 2, 3]);
    }
}
