//! Builds the packets of cases, and compares the result of a run with the expectation.

use super::cases::{Case, Ledger, PACKETS_PER_FRAME, Shot, Wrong};
use daq_drivers::packet::spead::{Item, SpeadConfig, build_packet, item};
use daq_drivers::packet::{Format, RawConfig};
use daq_drivers::sys::send::Sender;
use daq_testkit::loopback::{self, Queue};
use daq_testkit::network::{payload, recording};
use daq_testkit::{Daq, Outcome, free_udp_port};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

/// How packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Each packet is sent after the previous one was received.
    Slow,
    /// Packets are sent one by one, in batches of this many bytes.
    Bursts(usize),
    /// Packets are sent in batches of this many bytes, which Linux splits into packets (GSO). They are also received
    /// together (GRO).
    Offload(usize),
}

/// The format of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The raw format, with this many payload bytes.
    Raw(usize),
    /// SPEAD, with `first` payload bytes in a heap's first packet and `rest` in the others.
    Spead { rest: usize, first: usize },
}

impl Kind {
    /// SPEAD with `first` payload bytes in a heap's first packet and `rest` in the others.
    pub const fn spead(rest: usize, first: usize) -> Self {
        Self::Spead { rest, first }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Raw(_) => "raw",
            Self::Spead { .. } => "spead",
        }
    }

    fn keys(self, case: &Case) -> String {
        let (bytes, step) = (case.bytes, case.step);
        match self {
            Self::Raw(payload) => {
                let offset = 16 - bytes;
                format!(
                    "header = 16\npayload = {payload}\n\
                     sequence = {{ offset = {offset}, bytes = {bytes}, step = {step} }}\n"
                )
            }
            Self::Spead { rest, first } => {
                let heap = self.frame();
                format!("heap = {heap}\npacket = {rest}\nfirst = {first}\nheap_step = {step}\n")
            }
        }
    }

    fn format(self, case: &Case) -> Format {
        let keys = self.keys(case);
        match self {
            Self::Raw(_) => toml::from_str::<RawConfig>(&keys).unwrap().build().unwrap(),
            Self::Spead { .. } => toml::from_str::<SpeadConfig>(&keys)
                .unwrap()
                .build()
                .unwrap(),
        }
    }

    /// Returns the payload bytes per frame. The last packet of a heap is shorter than the others.
    pub fn frame(self) -> usize {
        match self {
            Self::Raw(payload) => payload * usize::try_from(PACKETS_PER_FRAME).unwrap(),
            Self::Spead { rest, first } => {
                first + rest * usize::try_from(PACKETS_PER_FRAME - 1).unwrap() - 100
            }
        }
    }
}

/// A case whose packets are sent to a source.
pub struct Attack<'a> {
    pub case: &'a Case,
    /// Makes the payload differ from that of other cases.
    pub stream: u64,
    pub format: Format,
    pub source: String,
    pub port: u16,
}

impl Attack<'_> {
    /// Returns the number of the frame or heap of packet `n`, and the index of the packet in it.
    fn name(&self, n: u64) -> (u64, u32) {
        let per_unit = u64::from(self.format.facts().numbering.packets_per_unit);
        let unit = (n / per_unit).wrapping_mul(self.case.step) & self.format.unit_mask();
        (unit, u32::try_from(n % per_unit).unwrap())
    }

    fn payload(&self, n: u64) -> Vec<u8> {
        let (_, sub) = self.name(n);
        let mut bytes = vec![0; self.format.facts().layout.range(sub).len()];
        payload(self.stream, n, &mut bytes);
        bytes
    }

    fn packet(&self, shot: Shot) -> Vec<u8> {
        let mut out = Vec::new();
        let build = |n: u64, payload: &[u8], out: &mut Vec<u8>| {
            let (unit, sub) = self.name(n);
            self.format.build(unit, sub, None, payload, out);
        };
        match shot {
            Shot::Good(n) => build(n, &self.payload(n), &mut out),
            Shot::Short(n) => {
                build(n, &self.payload(n), &mut out);
                out.pop();
            }
            Shot::Long(n) => {
                let mut payload = self.payload(n);
                payload.push(1);
                build(n, &payload, &mut out);
            }
            Shot::Garbage(bytes) => out.resize(bytes, 0xff),
            Shot::Between(n) => {
                let (unit, sub) = self.name(n);
                self.format.build(
                    unit + self.case.step / 2,
                    sub,
                    None,
                    &self.payload(n),
                    &mut out,
                );
            }
            Shot::Spead(n, wrong) => self.wrong(n, wrong, &mut out),
        }
        out
    }

    /// Builds a SPEAD packet with the fault `wrong`.
    fn wrong(&self, n: u64, wrong: Wrong, out: &mut Vec<u8>) {
        let (unit, sub) = self.name(n);
        let layout = self.format.facts().layout;
        let payload = self.payload(n);
        let other = wrong == Wrong::OtherLength;
        let misplaced = u64::from(wrong == Wrong::Offset);
        let items = [
            (Wrong::NoCounter, item::HEAP_COUNTER, unit),
            (
                Wrong::NoLength,
                item::HEAP_LENGTH,
                if other {
                    payload.len()
                } else {
                    layout.unit_bytes
                } as u64,
            ),
            (
                Wrong::NoOffset,
                item::HEAP_OFFSET,
                layout.range(sub).start as u64 + misplaced,
            ),
            (Wrong::Magic, item::PAYLOAD_LENGTH, payload.len() as u64),
        ];
        let without = |absent: Wrong| absent != Wrong::Magic && absent == wrong;
        let items: Vec<_> = items
            .into_iter()
            .filter(|(absent, _, _)| !without(*absent))
            .map(|(_, id, value)| Item::immediate(id, value))
            .collect();
        let bits = if wrong == Wrong::Flavour { 48 } else { 40 };
        build_packet(bits, &items, &payload, out);
        match wrong {
            Wrong::Magic => out[0] ^= 1,
            Wrong::Version => out[1] = 3,
            // Declare more items than the packet has space for.
            Wrong::Items => out[6..8].copy_from_slice(&u16::MAX.to_be_bytes()),
            _ => {}
        }
    }

    /// Sends all packets in such a way that none is lost on the way.
    fn send(&self, rate: Rate) {
        let max = match rate {
            Rate::Slow => 1,
            Rate::Bursts(bytes) | Rate::Offload(bytes) => bytes,
        };
        let offload = matches!(rate, Rate::Offload(_));
        // In batches, wait for the reader before a small buffer could overflow.
        self.shoot(&self.case.shots, max, offload, || {
            Queue::drained(self.port);
        });
    }

    /// Sends `shots` in batches of about `max` bytes, and calls `between` after each batch.
    pub fn shoot(&self, shots: &[Shot], max: usize, offload: bool, between: impl Fn()) {
        loopback::stay();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut sender = Sender::open(address, offload, None).unwrap();
        let packets: Vec<_> = shots.iter().map(|shot| self.packet(*shot)).collect();
        let mut left = &packets[..];
        while let Some(first) = left.first() {
            // Linux can split a message only into packets of equal size.
            let mut bytes = 0;
            let together = left
                .iter()
                .take_while(|packet| {
                    let fits = bytes == 0 || bytes + packet.len() <= max;
                    bytes += packet.len();
                    fits && (!offload || packet.len() == first.len() && !packet.is_empty())
                })
                .count()
                .max(1);
            let (now, later) = left.split_at(together);
            if offload && !first.is_empty() {
                sender.send_packets(&now.concat(), first.len()).unwrap();
            } else {
                for packet in now {
                    sender.send(packet).unwrap();
                }
            }
            between();
            left = later;
        }
    }

    /// Compares the ledger and the file with the expectation.
    pub fn check(&self, daq: &Daq, outcome: &Outcome, frame: usize) -> Result<(), String> {
        let case = self.case;
        let ledger = Ledger::of(outcome, &self.source);
        if ledger != case.ledger {
            return Err(format!("{ledger:?}, expected\n{:?}", case.ledger));
        }
        let file = recording(daq, &format!("{}-disk", self.source));
        let mut at = 0;
        let mut index = None;
        let (mut skipped, mut missing, mut bytes) = (0, Vec::<Range<usize>>::new(), 0);
        for (packets, absent) in &case.stored {
            for number in packets.start / PACKETS_PER_FRAME..packets.end.div_ceil(PACKETS_PER_FRAME)
            {
                if let Some((_, first)) = file.runs.iter().find(|(bytes, _)| bytes.start == at) {
                    index = Some(*first);
                }
                let all = number * PACKETS_PER_FRAME..(number + 1) * PACKETS_PER_FRAME;
                let is_there = |n: &u64| packets.contains(n) && !absent.contains(n);
                if index != Some(number * frame as u64) {
                    if all.clone().any(|n| is_there(&n)) {
                        return Err(format!(
                            "frame {number} must be at byte {at} of the file, but the index there is {index:?}"
                        ));
                    }
                    skipped += 1;
                    continue;
                }
                for n in all {
                    let range = self.extent(n);
                    let place = at + range.start..at + range.end;
                    let found = file
                        .data
                        .get(place.clone())
                        .ok_or("the file is too short")?;
                    if is_there(&n) {
                        bytes += found.len() as u64;
                        if found != self.payload(n) {
                            return Err(format!("wrong bytes in packet slot {n}"));
                        }
                        continue;
                    }
                    if found.iter().any(|byte| *byte != 0) {
                        return Err(format!(
                            "packet slot {n} must be zero, because its packet did not arrive"
                        ));
                    }
                    match missing.last_mut() {
                        Some(last) if last.end == place.start => last.end = place.end,
                        _ => missing.push(place),
                    }
                }
                at += frame;
                index = index.map(|index| index + frame as u64);
            }
        }
        if at != file.data.len() {
            return Err(format!(
                "{} bytes in the file, expected {at}",
                file.data.len()
            ));
        }
        if bytes != outcome.count(&format!("sources.{}.bytes", self.source)) {
            return Err(format!(
                "the file contains {bytes} bytes of packets, but the source counted: {}",
                outcome.report["sources"][&self.source]
            ));
        }
        if (&missing, skipped) != (&file.missing, file.frames) {
            return Err(format!(
                "the file annotates missing bytes {:?} and {} missing frames, expected {missing:?} and {skipped}",
                file.missing, file.frames
            ));
        }
        Ok(())
    }

    /// Returns the byte range of packet `n` in its frame.
    fn extent(&self, n: u64) -> Range<usize> {
        let layout = self.format.facts().layout;
        let packet = n % PACKETS_PER_FRAME;
        if self.format.facts().is_unit_frame {
            return layout.range(u32::try_from(packet).unwrap());
        }
        let start = usize::try_from(packet).unwrap() * layout.unit_bytes;
        start..start + layout.unit_bytes
    }
}

/// Prepares a process with one source and one file sink for each case. Only packets and the end of the source close frames, however
/// long the machine delays the sender.
pub fn prepare<'a>(kind: Kind, keys: &str, cases: &'a [Case]) -> (Daq, Vec<Attack<'a>>) {
    let mut attacks = Vec::new();
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    for (stream, case) in (1..).zip(cases) {
        let (port, frame) = (free_udp_port(), kind.frame());
        let name = case.name;
        let (kind_name, format, more) = (kind.name(), kind.keys(case), case.keys);
        write!(
            text,
            "[source.{name}]\ndriver = \"udp\"\nring = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\nwindow = 4\n\
             close_after = \"1 h\"\n{keys}\n{more}\n\
             [source.{name}.format]\nkind = \"{kind_name}\"\n{format}\n\
             [ring.{name}]\nmemory = \"host\"\nslot = {frame}\nslots = 256\n\
             [sink.{name}-disk]\ndriver = \"file\"\ninput = \"{name}\"\npath = \"out\"\nbuffer = \"16 KiB\"\n"
        )
        .unwrap();
        attacks.push(Attack {
            case,
            stream,
            format: kind.format(case),
            source: name.to_owned(),
            port,
        });
    }
    (Daq::new(&text), attacks)
}

/// Sends the packets of `cases` as `rate` defines, and checks the results.
pub fn attack(kind: Kind, rate: Rate, cases: &[Case]) {
    let (daq, attacks) = prepare(kind, "receive_buffer = \"1 MiB\"", cases);
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    for attack in &attacks {
        assert!(
            matches!(attack.case.shots.last(), Some(Shot::Good(_))),
            "the last packet must be valid"
        );
        attack.send(rate);
    }
    let outcome = live.stop().ok();
    let frame = kind.frame();
    let wrong: Vec<_> = attacks
        .iter()
        .filter_map(|attack| Some((&attack.source, attack.check(&daq, &outcome, frame).err()?)))
        .map(|(source, why)| format!("{source}: {why}"))
        .collect();
    assert!(
        wrong.is_empty(),
        "{kind:?} at {rate:?}:\n{}\n{}",
        wrong.join("\n"),
        outcome.stderr
    );
    // Rejected packets are logged once per source and reason.
    for attack in attacks
        .iter()
        .filter(|attack| attack.case.ledger.rejected > 0)
    {
        let warnings = outcome
            .stderr
            .lines()
            .filter(|line| line.contains(&format!("source {}:", attack.source)));
        let warnings = warnings.filter(|line| line.contains("rejected")).count();
        assert!(
            (1..=8).contains(&warnings),
            "expected 1 to 8 warnings about {}, found {warnings}:\n{}",
            attack.source,
            outcome.stderr
        );
    }
}
