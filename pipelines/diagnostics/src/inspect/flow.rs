//! The packets of each flow: a pair of sender and destination.

use super::split::Splitter;
use daq_core::recognise::{CapturedPacket, Recogniser};
use daq_drivers::packet::pcap::Datagram;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

/// Maximum number of bytes that are stored of each packet. Headers are much shorter.
const HEAD: usize = 256;
/// Maximum number of packets per flow and in total that are stored. Later packets are only counted.
const MAX_STORED: usize = 65_536;
const MAX_STORED_TOTAL: usize = 1 << 20;
/// Maximum number of flows. Packets of other flows are only counted.
const MAX_FLOWS: usize = 4096;

/// All packets from one sender to one destination.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// Number of packets, including those that are not stored.
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// Number of packets of each size.
    pub(super) sizes: BTreeMap<usize, u64>,
    /// The first packets, in the order of their arrival.
    pub(super) stored: Vec<CapturedPacket>,
    splitter: Splitter,
}

impl Flow {
    fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            source,
            destination,
            packets: 0,
            bytes: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            sizes: BTreeMap::new(),
            stored: Vec::new(),
            splitter: Splitter::default(),
        }
    }

    fn add(&mut self, ns: u64, payload: &[u8], stored: &mut usize) {
        self.packets += 1;
        self.bytes += payload.len() as u64;
        self.first_ns = self.first_ns.min(ns);
        self.last_ns = self.last_ns.max(ns);
        *self.sizes.entry(payload.len()).or_default() += 1;
        if self.stored.len() < MAX_STORED && *stored < MAX_STORED_TOTAL {
            *stored += 1;
            self.stored.push(CapturedPacket {
                source: self.source,
                ns,
                length: payload.len(),
                head: payload[..payload.len().min(HEAD)].into(),
            });
        }
    }

    /// Returns the time from the first to the last packet in seconds; `None` if the capture contains no times.
    pub(super) fn seconds(&self) -> Option<f64> {
        let ns = self.last_ns.checked_sub(self.first_ns)?;
        (ns > 0 && self.first_ns > 0).then(|| ns as f64 / 1e9)
    }
}

/// The flows of a capture, in the order of their first packets.
#[derive(Debug, Default)]
pub(super) struct Flows {
    recognisers: Vec<Recogniser>,
    known: HashMap<(SocketAddr, SocketAddr), usize>,
    pub(super) list: Vec<Flow>,
    /// Number of packets of further flows, which were not examined.
    pub(super) omitted: u64,
    /// Number of packets to ports that are not examined, by port.
    pub(super) others: BTreeMap<u16, u64>,
    /// Number of records that contained several datagrams and were split.
    pub(super) split: u64,
    /// Number of stored packets.
    stored: usize,
}

impl Flows {
    /// Creates an empty list. `recognisers` read the sizes of datagrams, if one record contains several.
    pub(super) fn new(recognisers: Vec<Recogniser>) -> Self {
        Self {
            recognisers,
            ..Self::default()
        }
    }

    /// Returns the index of the flow of a datagram; `None` if there are too many flows.
    fn flow(&mut self, datagram: &Datagram<'_>) -> Option<usize> {
        let key = (datagram.source, datagram.destination);
        let next = self.list.len();
        match self.known.get(&key) {
            Some(index) => return Some(*index),
            None if next >= MAX_FLOWS => {
                self.omitted += 1;
                return None;
            }
            None => {}
        }
        self.known.insert(key, next);
        self.list.push(Flow::new(key.0, key.1));
        Some(next)
    }

    /// Counts a datagram that is not examined because of its port.
    pub(super) fn skip(&mut self, record: &Datagram<'_>) {
        *self.others.entry(record.destination.port()).or_default() += 1;
    }

    /// Adds one datagram.
    pub(super) fn add_single(&mut self, datagram: &Datagram<'_>) {
        if let Some(flow) = self.flow(datagram) {
            self.list[flow].add(datagram.timestamp_ns, datagram.payload, &mut self.stored);
        }
    }

    /// Adds a record, which contains one datagram, or several because of segmentation offload.
    pub(super) fn add(&mut self, record: &Datagram<'_>) {
        let Some(flow) = self.flow(record) else {
            return;
        };
        let flow = &mut self.list[flow];
        let segment = flow.splitter.segment(record, &self.recognisers);
        if record.payload.is_empty() {
            flow.add(record.timestamp_ns, &[], &mut self.stored);
        }
        for datagram in record.payload.chunks(segment) {
            flow.add(record.timestamp_ns, datagram, &mut self.stored);
        }
        self.split += u64::from(segment < record.payload.len());
    }
}
