//! Finds datagrams in frames one after another: whole ones, and those of which all IP fragments have arrived.

use super::dissect::{Found, Skip, dissect};
use super::fragments::Fragments;
use super::{Datagram, Filter, Skipped};
use pcap_file::DataLink;

/// Finds the datagrams in frames.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    fragments: Fragments,
    /// The payload of the last datagram.
    payload: Vec<u8>,
    /// Number of frames that contained the rest of a datagram that was assembled.
    pub(super) joined: u64,
    /// The frames without a usable datagram.
    pub(super) skipped: Skipped,
    /// Selects the frames that count as rejected.
    pub(super) filter: Filter,
    /// The frames that the filter selects and that contain only a part of a datagram, or no readable one.
    pub(super) rejected: Skipped,
}

impl Assembler {
    /// Adds a frame whose original size was `wire` bytes. Returns the datagram that it contains or completes, whose payload
    /// [`datagram`](Self::datagram) returns.
    pub(super) fn add(&mut self, link: DataLink, bytes: &[u8], wire: usize) -> Option<Found> {
        match dissect(link, bytes, wire) {
            Ok(found) => {
                self.payload.clear();
                self.payload
                    .extend_from_slice(&bytes[found.payload.clone()]);
                Some(found)
            }
            Err(Skip::Fragment(piece)) => {
                self.skipped.fragment += 1;
                let part = &bytes[piece.payload.clone()];
                let (whole, frames) = self.fragments.add(&piece, part, &mut self.payload)?;
                self.skipped.fragment -= frames;
                match whole {
                    Ok(found) => {
                        self.joined += frames - 1;
                        self.payload.truncate(found.payload.end);
                        self.payload.drain(..found.payload.start);
                        Some(found)
                    }
                    Err(skip) => {
                        self.skipped.fragment += frames - 1;
                        self.count(&skip);
                        None
                    }
                }
            }
            Err(skip) => {
                self.count(&skip);
                None
            }
        }
    }

    fn count(&mut self, skip: &Skip) {
        self.skipped.count(skip);
        let is_rejected = match skip {
            Skip::NotUdp | Skip::Fragment(_) => false,
            Skip::UnknownLink => true,
            Skip::CutShort(to) | Skip::Malformed(to) => to.is_none_or(|to| self.filter.matches(to)),
        };
        if is_rejected {
            self.rejected.count(skip);
        }
    }

    /// Returns the datagram that the last call of [`add`](Self::add) found.
    pub(super) fn datagram(&self, found: &Found, timestamp_ns: u64) -> Datagram<'_> {
        Datagram {
            timestamp_ns,
            source: found.source,
            destination: found.destination,
            checksum: found.checksum,
            payload: &self.payload,
        }
    }
}

/// Finds the datagrams in IP packets that are received one after another, such as those of an interface.
#[derive(Debug, Default)]
pub struct IpDatagrams {
    assembler: Assembler,
}

impl IpDatagrams {
    /// Returns the datagram in a packet that was received at `timestamp_ns`, or the datagram of which it is the last missing
    /// fragment. Other packets are [counted](Self::skipped).
    pub fn add(&mut self, packet: &[u8], timestamp_ns: u64) -> Option<Datagram<'_>> {
        let found = self.assembler.add(DataLink::RAW, packet, packet.len())?;
        Some(self.assembler.datagram(&found, timestamp_ns))
    }

    /// Returns the packets without a datagram so far, and the fragments of incomplete datagrams.
    pub fn skipped(&self) -> Skipped {
        self.assembler.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an IPv4 packet with a fragment of a datagram at byte `offset`.
    fn fragment(id: u16, offset: u16, has_more: bool, bytes: &[u8]) -> Vec<u8> {
        let length = u16::try_from(20 + bytes.len()).unwrap();
        let place = (offset / 8) | if has_more { 0x2000 } else { 0 };
        let mut packet = vec![0x45, 0];
        packet.extend([length, id, place].map(u16::to_be_bytes).concat());
        packet.extend([64, 17, 0, 0, 10, 0, 0, 5, 10, 0, 0, 1]);
        packet.extend(bytes);
        packet
    }

    #[test]
    fn fragments_are_assembled_and_incomplete_datagrams_counted() {
        let payload: Vec<u8> = (0..200).collect();
        let mut datagram = [4001_u16, 7148, 208, 0].map(u16::to_be_bytes).concat();
        datagram.extend(&payload);
        let (first, second) = datagram.split_at(104);
        let mut datagrams = IpDatagrams::default();
        assert_eq!(datagrams.add(&fragment(1, 0, true, first), 5), None);
        assert_eq!(datagrams.skipped().fragment, 1);
        let packet = fragment(1, 104, false, second);
        let whole = datagrams.add(&packet, 6).unwrap();
        assert_eq!((whole.payload, whole.timestamp_ns), (&payload[..], 6));
        assert_eq!(whole.destination.port(), 7148);
        assert_eq!(datagrams.skipped().total(), 0);
        assert_eq!(datagrams.add(&packet, 7), None);
        assert_eq!(datagrams.skipped().fragment, 1);
    }
}
