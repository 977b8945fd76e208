//! Finds the UDP payload in a captured network frame.

use super::fragments::Key;
use pcap_file::DataLink;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

/// Reason why a captured frame contains no usable datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Skip {
    /// The frame uses another protocol.
    NotUdp,
    /// The frame contains a fragment of a datagram.
    Fragment(Piece),
    /// The capture contains only the beginning of the frame. The destination of its datagram is `None` if the headers are cut too.
    CutShort(Option<SocketAddr>),
    /// The link layer is not supported.
    UnknownLink,
    /// The length fields of the frame contradict each other. The destination of its datagram is `None` if it is not known.
    Malformed(Option<SocketAddr>),
}

/// A fragment of a datagram found in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) key: Key,
    /// Offset in the datagram in bytes.
    pub(super) offset: usize,
    /// Whether a fragment follows this one.
    pub(super) has_more: bool,
    /// Byte range of the fragment in the frame.
    pub(super) payload: Range<usize>,
}

/// A datagram found in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// UDP checksum; 0 if the sender computed none.
    pub(super) checksum: u16,
    /// Byte range of the payload in the frame.
    pub(super) payload: Range<usize>,
}

/// Why a frame ends too early.
#[derive(Clone, Copy)]
enum Short {
    /// The capture truncated it.
    Cut,
    /// Its length fields are wrong.
    Malformed,
}

impl Short {
    /// Returns why a frame with a datagram to `destination` is skipped.
    const fn skip(self, destination: Option<SocketAddr>) -> Skip {
        match self {
            Self::Cut => Skip::CutShort(destination),
            Self::Malformed => Skip::Malformed(destination),
        }
    }
}

impl From<Short> for Skip {
    fn from(short: Short) -> Self {
        short.skip(None)
    }
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherTypes of VLAN tags: 802.1Q, 802.1ad, and the older type for double tags.
const ETHERTYPE_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const PROTOCOL_UDP: u8 = 17;
const UDP_HEADER: usize = 8;

/// Finds the datagram in `frame`. `wire` is the frame's original size in bytes before the capture truncated it.
pub(super) fn dissect(link: DataLink, frame: &[u8], wire: usize) -> Result<Found, Skip> {
    let short = if frame.len() < wire {
        Short::Cut
    } else {
        Short::Malformed
    };
    let network = match link {
        DataLink::ETHERNET => after_tags(frame, 12, short)?,
        DataLink::LINUX_SLL => after_tags(frame, 14, short)?,
        DataLink::LINUX_SLL2 => match word(frame, 0).ok_or(short)? {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => 20,
            tag if ETHERTYPE_VLAN.contains(&tag) => after_tags(frame, 22, short)?,
            _ => return Err(Skip::NotUdp),
        },
        // The address family before the packet has the byte order of the capturing host. It is skipped, because the IP
        // header contains the version.
        DataLink::NULL | DataLink::LOOP => 4,
        // Some systems use their own link types for raw IP: 12 and 14.
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 | DataLink::Unknown(12 | 14) => 0,
        _ => return Err(Skip::UnknownLink),
    };
    match frame.get(network).ok_or(short)? >> 4 {
        4 => ipv4(frame, network, short),
        6 => ipv6(frame, network, short),
        _ => Err(Skip::NotUdp),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the offset of the network header. The EtherType is at `at`, and any number of VLAN tags may precede it.
fn after_tags(frame: &[u8], mut at: usize, short: Short) -> Result<usize, Skip> {
    loop {
        match word(frame, at).ok_or(short)? {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Ok(at + 2),
            tag if ETHERTYPE_VLAN.contains(&tag) => at += 4,
            _ => return Err(Skip::NotUdp),
        }
    }
}

fn ipv4(frame: &[u8], at: usize, short: Short) -> Result<Found, Skip> {
    let packet = frame.get(at..).ok_or(short)?;
    let header: &[u8; 20] = packet.first_chunk().ok_or(short)?;
    let header_len = usize::from(header[0] & 15) * 4;
    if header_len < header.len() {
        return Err(Skip::Malformed(None));
    }
    if header[9] != PROTOCOL_UDP {
        return Err(Skip::NotUdp);
    }
    let address = |at: usize| {
        let octets: [u8; 4] = *header[at..]
            .first_chunk()
            .expect("a header of 20 bytes has 4 bytes at offsets 12 and 16");
        IpAddr::V4(Ipv4Addr::from(octets))
    };
    let (source, destination) = (address(12), address(16));
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    // More fragments follow, or this is not the first fragment.
    if fragment & 0x3fff != 0 {
        let end = match usize::from(u16::from_be_bytes([header[2], header[3]])) {
            0 => frame.len(),
            length => at + length,
        };
        let id = u16::from_be_bytes([header[4], header[5]]);
        let key = (source, destination, u32::from(id));
        let offset = usize::from(fragment & 0x1fff) * 8;
        let payload = at + header_len..end;
        return Err(piece(frame, key, offset, fragment & 0x2000 != 0, payload).ok_or(short)?);
    }
    udp(frame, at + header_len, source, destination, short)
}

fn ipv6(frame: &[u8], at: usize, short: Short) -> Result<Found, Skip> {
    let packet = frame.get(at..).ok_or(short)?;
    let header: &[u8; 40] = packet.first_chunk().ok_or(short)?;
    let address = |at: usize| {
        let octets: [u8; 16] = *header[at..]
            .first_chunk()
            .expect("a header of 40 bytes has 16 bytes at offsets 8 and 24");
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let (source, destination) = (address(8), address(24));
    let end = at + header.len() + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let (mut next, mut at) = (header[6], at + header.len());
    loop {
        let extension = || frame.get(at..)?.first_chunk::<4>();
        match next {
            PROTOCOL_UDP => return udp(frame, at, source, destination, short),
            // Hop-by-hop, routing and destination options: length in units of 8 bytes, not counting the first 8 bytes.
            0 | 43 | 60 => {
                let header = extension().ok_or(short)?;
                (next, at) = (header[0], at + (usize::from(header[1]) + 1) * 8);
            }
            // Authentication header: length in units of 4 bytes, not counting the first 8 bytes.
            51 => {
                let header = extension().ok_or(short)?;
                (next, at) = (header[0], at + (usize::from(header[1]) + 2) * 4);
            }
            // Accept a fragment header on an unfragmented packet.
            44 => {
                let header = extension().ok_or(short)?;
                let fragment = u16::from_be_bytes([header[2], header[3]]);
                (next, at) = (header[0], at + 8);
                if fragment & 0xfff9 == 0 {
                    continue;
                }
                if next != PROTOCOL_UDP {
                    return Err(Skip::NotUdp);
                }
                let id = frame.get(at - 4..).and_then(|rest| rest.first_chunk());
                let id = u32::from_be_bytes(*id.ok_or(short)?);
                let key = (source, destination, id);
                let (offset, has_more) = (usize::from(fragment & 0xfff8), fragment & 1 != 0);
                return Err(piece(frame, key, offset, has_more, at..end).ok_or(short)?);
            }
            _ => return Err(Skip::NotUdp),
        }
    }
}

/// Returns the fragment in the bytes `payload` of `frame`, or `None` if the frame does not contain all of them.
fn piece(
    frame: &[u8],
    key: Key,
    offset: usize,
    has_more: bool,
    payload: Range<usize>,
) -> Option<Skip> {
    frame.get(payload.clone())?;
    Some(Skip::Fragment(Piece {
        key,
        offset,
        has_more,
        payload,
    }))
}

/// Finds the payload of a datagram that was assembled from fragments.
pub(super) fn datagram(bytes: &[u8], source: IpAddr, destination: IpAddr) -> Result<Found, Skip> {
    udp(bytes, 0, source, destination, Short::Malformed)
}

fn udp(
    frame: &[u8],
    at: usize,
    source: IpAddr,
    destination: IpAddr,
    short: Short,
) -> Result<Found, Skip> {
    let header: &[u8; UDP_HEADER] = frame
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(short)?;
    let [s0, s1, d0, d1, l0, l1, c0, c1] = *header;
    let start = at + UDP_HEADER;
    let destination = SocketAddr::new(destination, u16::from_be_bytes([d0, d1]));
    let end = match usize::from(u16::from_be_bytes([l0, l1])) {
        // A host captures its own packets before the NIC segments them, so they can be too long for the length field,
        // which is then 0.
        0 => frame.len(),
        length if length < UDP_HEADER => return Err(Skip::Malformed(Some(destination))),
        length => at + length,
    };
    if end > frame.len() {
        return Err(short.skip(Some(destination)));
    }
    Ok(Found {
        source: SocketAddr::new(source, u16::from_be_bytes([s0, s1])),
        destination,
        checksum: u16::from_be_bytes([c0, c1]),
        payload: start..end,
    })
}
