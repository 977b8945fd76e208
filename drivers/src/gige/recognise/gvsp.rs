//! Recognises GVSP, the stream protocol of GigE Vision: for each image a leader, packets with pixels, and a trailer.

use crate::gige::gvsp::{
    self, EXTENDED, EXTENDED_HEADER, Header, IMAGE, LEADER, PAYLOAD, STANDARD_HEADER, TRAILER,
};
use crate::gige::pixel::PixelFormat;
use crate::packet::FieldKeys;
use crate::packet::raw::recognise::fixed::{Fixed, Numbers};
use crate::packet::recognise::{CapturedPacket, Key, MIN_SHARE, Recognised, mode, percent};
use daq_core::layout::Samples;
use std::collections::{HashMap, HashSet};

fn header(head: &[u8]) -> Option<Header> {
    let header = Header::read(head)?;
    matches!(header.format, LEADER | TRAILER | PAYLOAD).then_some(header)
}

/// Recognises GVSP.
pub(super) fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let found: Vec<Option<Header>> = packets.iter().map(|packet| header(&packet.head)).collect();
    let known: Vec<Header> = found.iter().copied().flatten().collect();
    let count = |format| known.iter().filter(|ids| ids.format == format).count();
    let (leaders, trailers, data) = (count(LEADER), count(TRAILER), count(PAYLOAD));
    // A leader has packet id 0, and payload counts from 1.
    let is_first = |ids: &&Header| (ids.format == LEADER) == (ids.id == 0);
    let valid = known.iter().filter(is_first).count();
    let confidence = percent(valid, packets.len());
    if confidence < MIN_SHARE || data == 0 || (leaders == 0 && trailers == 0) {
        return None;
    }
    let is_extended = packets
        .iter()
        .any(|packet| packet.head.get(4).is_some_and(|kind| kind & EXTENDED != 0));
    let (header, frame, packet) = if is_extended {
        (EXTENDED_HEADER, FieldKeys::big(8, 8), FieldKeys::big(16, 4))
    } else {
        // Block id 0 is reserved.
        let frame = FieldKeys {
            range: Some([1, 0xffff]),
            ..FieldKeys::big(2, 2)
        };
        (STANDARD_HEADER, frame, FieldKeys::big(5, 3))
    };
    let is_payload = |ids: &Option<Header>| ids.is_some_and(|ids| ids.format == PAYLOAD);
    let leader = packets.iter().zip(&found).find_map(|(packet, ids)| {
        (ids.as_ref()?.format == LEADER).then(|| Leader::of(&packet.head, header))?
    });
    let payloads: Vec<(u64, usize)> = packets
        .iter()
        .zip(&found)
        .filter(|(_, ids)| is_payload(ids))
        .filter_map(|(packet, ids)| Some(((*ids)?.id.into(), packet.length.checked_sub(header)?)))
        .collect();
    let size = ImageSize::of(&known, &payloads, leader.as_ref())?;
    let (payload, per_frame) = (size.payload, size.packets);
    let blocks: Vec<u64> = known.iter().map(|ids| ids.block).collect();
    let moved = blocks.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let step = mode(moved.filter(|step| (1..1 << 15).contains(step))).map_or(1, |(step, _)| step);
    let kind = PAYLOAD | if is_extended { EXTENDED } else { 0 };
    let mut why = vec![
        format!(
            "{leaders} leaders, {data} packets with pixels, {trailers} trailers: packet format 1, 3, 2 at byte 4"
        ),
        format!(
            "{per_frame} packets per image of {payload} B, the last one may be shorter; packet ids count from 1"
        ),
    ];
    why.extend(leader.as_ref().map(Leader::words));
    let mut ambiguous = vec![
        "the packets do not show how the camera was started: the source `gige` sets it up, starts it and requests \
         lost packets again"
            .to_owned(),
    ];
    let mut more = vec![Key::new(
        format!(
            "match    = [{{ {}, values = [{kind}] }}]",
            FieldKeys::big(4, 1)
        ),
        "leaders and trailers have another packet format and are counted as `control`:",
    )];
    let notes = size.notes(leader.as_ref());
    more.extend(notes.iter().map(|note| Key::note(note.clone())));
    ambiguous.extend(notes);
    let fixed = Fixed {
        header,
        payload,
        last: size.last,
        numbers: Numbers::Packets {
            frame: frame.stepping(step),
            packet: FieldKeys { first: 1, ..packet },
            packets: per_frame,
        },
        samples: leader.and_then(|leader| leader.samples(size.bytes())),
        more,
    };
    let place = |(packet, ids): (&&CapturedPacket, &Option<Header>)| {
        is_payload(ids).then(|| fixed.place(packet)).flatten()
    };
    Some(Recognised {
        name: "GigE Vision stream (GVSP)".to_owned(),
        confidence,
        why,
        ambiguous,
        numbering: fixed.numbering(),
        places: packets.iter().zip(&found).map(place).collect(),
        layout: format!("gvsp {header} {payload} {per_frame}"),
        suggestion: fixed.suggestion(true),
    })
}

/// What a leader states about its image.
#[derive(Clone, Copy, Debug)]
struct Leader {
    image: gvsp::Leader,
    /// The payload type with its flags.
    kind: u16,
}

/// Bits of the payload type that do not state the type, such as that of chunk data after the image.
const TYPE_FLAGS: u16 = 0xc000;
/// Maximum size of an image in bytes.
const MAX_IMAGE: u64 = 1 << 32;

impl Leader {
    fn of(head: &[u8], header: usize) -> Option<Self> {
        let (kind, image) = gvsp::stated_image(head.get(header..)?)?;
        Some(Self { image, kind })
    }

    fn format(&self) -> Option<PixelFormat> {
        PixelFormat::of_code(self.image.pixel_format)
    }

    fn pixel_name(&self) -> String {
        let name = |format: PixelFormat| format.name.to_owned();
        let code = || format!("pixel format {:#010x}", self.image.pixel_format);
        self.format().map_or_else(code, name)
    }

    fn words(&self) -> String {
        let gvsp::Leader { width, height, .. } = self.image;
        let pixel = self.pixel_name();
        format!("the leader states {width} x {height} pixels, {pixel}")
    }

    /// Returns the number of bytes of the pixels with their padding; `None` for other data, and if the number is absurd.
    fn image_bytes(&self) -> Option<u64> {
        if self.kind & !TYPE_FLAGS != IMAGE {
            return None;
        }
        // Bits 16 to 23 of a code are the number of bits per pixel.
        let bits = u64::from(self.image.pixel_format >> 16 & 0xff);
        let (after_line, after_image) = self.image.padding;
        let line_bits = u64::from(self.image.width).checked_mul(bits)?;
        let height = u64::from(self.image.height);
        let pixels = match after_line {
            0 => line_bits.checked_mul(height)?.div_ceil(8),
            padding => (line_bits.div_ceil(8) + u64::from(padding)).checked_mul(height)?,
        };
        let bytes = pixels.checked_add(after_image.into())?;
        (1..=MAX_IMAGE).contains(&bytes).then_some(bytes)
    }

    /// Returns the keys of `samples` if an image of `bytes` bytes is a whole number of them.
    fn samples(&self, bytes: Option<u64>) -> Option<String> {
        let format = self.format()?;
        let point = Samples {
            scalar: format.scalar,
            channels: format.channels,
            ..Samples::default()
        };
        let is_whole = |bytes: u64| bytes.is_multiple_of(point.point_bytes() as u64);
        if !bytes.is_none_or(is_whole) {
            return None;
        }
        Some(match format.channels {
            1 => format!("type = \"{}\"", format.scalar),
            channels => format!("type = \"{}\", channels = {channels}", format.scalar),
        })
    }
}

/// The packets of an image.
#[derive(Clone, Copy, Debug)]
struct ImageSize {
    /// Number of packets.
    packets: u64,
    /// Number of bytes in each packet, except in the last.
    payload: usize,
    /// Number of bytes in the last packet, if it is known.
    last: Option<usize>,
    /// Whether neither a trailer nor a leader states the number of packets.
    is_guessed: bool,
}

impl ImageSize {
    /// Returns the size from the numbers of all packets, and the numbers and sizes of packets with `payloads`.
    ///
    /// The packet id of a trailer is the number of packets before it. Without a trailer, the size of the image in the leader
    /// determines their number. Otherwise, it is at least the largest number that arrived.
    fn of(known: &[Header], payloads: &[(u64, usize)], leader: Option<&Leader>) -> Option<Self> {
        let highest = payloads.iter().map(|(packet, _)| *packet).max()?;
        // The last packet of an image may be the most frequent size only if images have few packets.
        let before_last = payloads.iter().filter(|(packet, _)| *packet < highest);
        let sizes = mode(before_last.map(|(_, size)| *size));
        let sizes = sizes.or_else(|| mode(payloads.iter().map(|(_, size)| *size)));
        let payload = sizes.map(|(size, _)| size).filter(|size| *size > 0)?;
        // Chunk data follow the image if the payload type has a flag.
        let plain = leader.filter(|leader| leader.kind == IMAGE);
        let image = plain.and_then(Leader::image_bytes);
        let stated = trailer_count(known).or_else(|| Some(image?.div_ceil(payload as u64)));
        // Images of different sizes, or a camera that numbers its trailers otherwise, contradict the trailer.
        let packets = stated.unwrap_or(1).max(usual_count(known)?);
        let ends = payloads.iter().filter(|(packet, _)| *packet == packets);
        let arrived = mode(ends.map(|(_, size)| *size)).map(|(size, _)| size);
        let arrived = arrived.filter(|size| (1..=payload).contains(size));
        let rest = || {
            let full = (packets - 1).checked_mul(payload as u64)?;
            let rest = usize::try_from(image?.checked_sub(full)?).ok()?;
            (1..=payload).contains(&rest).then_some(rest)
        };
        Some(Self {
            packets,
            payload,
            last: arrived.or_else(rest),
            is_guessed: stated.is_none(),
        })
    }

    /// Returns the number of bytes of an image with the data after it, if it is known.
    fn bytes(&self) -> Option<u64> {
        Some((self.packets - 1) * self.payload as u64 + self.last? as u64)
    }

    /// Returns what the packets do not show, or what a user must know about the frames.
    fn notes(&self, leader: Option<&Leader>) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_guessed {
            notes.push(format!(
                "no trailer and no size in a leader states the number of packets per image: {} is the largest number that arrived",
                self.packets
            ));
        }
        if self.last.is_none() {
            notes.push(format!(
                "no packet {} arrived, so its size is unknown: set `last` if it is shorter than the others",
                self.packets
            ));
        }
        let Some((leader, bytes)) = leader.zip(self.bytes()) else {
            return notes;
        };
        let more = leader
            .image_bytes()
            .and_then(|image| bytes.checked_sub(image));
        if let Some(more) = more.filter(|more| *more > 0) {
            notes.push(format!(
                "each frame ends with {more} B of other data after the pixels, such as chunk data; the source `gige` removes them"
            ));
        }
        if leader.format().is_some() && leader.samples(Some(bytes)).is_none() {
            notes.push(format!(
                "a frame of {bytes} B is not a whole number of pixels of the format {}, so the type of the samples is not set",
                leader.pixel_name()
            ));
        }
        notes
    }
}

/// Returns the most frequent number of packets before a trailer; `None` without a trailer.
fn trailer_count(known: &[Header]) -> Option<u64> {
    let trailers = known.iter().filter(|ids| ids.format == TRAILER);
    let counts = trailers.map(|ids| u64::from(ids.id).saturating_sub(1));
    mode(counts.filter(|count| *count > 0)).map(|(count, _)| count)
}

/// Returns the most frequent number of the last packet of an image, of the images whose trailer arrived if there are any.
fn usual_count(known: &[Header]) -> Option<u64> {
    let ended: HashSet<u64> = known
        .iter()
        .filter(|ids| ids.format == TRAILER)
        .map(|ids| ids.block)
        .collect();
    let mut last: HashMap<u64, u64> = HashMap::new();
    for ids in known.iter().filter(|ids| ids.format == PAYLOAD) {
        let most = last.entry(ids.block).or_default();
        *most = (*most).max(ids.id.into());
    }
    let of_ended = last.iter().filter(|(block, _)| ended.contains(block));
    let of_ended = mode(of_ended.map(|(_, most)| *most));
    of_ended
        .or_else(|| mode(last.values().copied()))
        .map(|(most, _)| most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::recognise::Suggestion;

    const MONO8: u32 = 0x0108_0001;
    const MONO16: u32 = 0x0110_0007;

    fn packet(block: u16, format: u8, id: u32, data: &[u8], length: usize) -> CapturedPacket {
        let mut head = vec![0, 0];
        head.extend(block.to_be_bytes());
        head.extend(((u32::from(format) << 24) | id).to_be_bytes());
        head.extend(data);
        head.resize(head.len().max((length + 8).min(64)), 7);
        CapturedPacket {
            source: ([10, 0, 0, 1], 9).into(),
            ns: 0,
            length: length + 8,
            head: head.into(),
        }
    }

    /// Returns an image of 320 x 240 pixels, followed by `chunk` bytes, in packets of 1464 bytes.
    fn image(block: u16, pixel: u32, chunk: usize) -> Vec<CapturedPacket> {
        let bytes = 320 * 240 * (pixel >> 19 & 3) as usize + chunk;
        let mut leader = vec![0, 0];
        leader.extend(if chunk > 0 { [0x40, 1] } else { [0, 1] });
        leader.extend([0; 8]);
        for word in [pixel, 320, 240, 0, 0, 0] {
            leader.extend(word.to_be_bytes());
        }
        let mut packets = vec![packet(block, LEADER, 0, &leader, leader.len())];
        let mut id = 0;
        for start in (0..bytes).step_by(1464) {
            id += 1;
            packets.push(packet(block, PAYLOAD, id, &[], (bytes - start).min(1464)));
        }
        packets.push(packet(block, TRAILER, id + 1, &[0; 8], 8));
        packets
    }

    /// Returns the keys of the suggestion without spaces, and `samples`.
    fn keys(packets: &[CapturedPacket]) -> (Vec<String>, Option<String>) {
        let found = recognise(&packets.iter().collect::<Vec<_>>()).unwrap();
        let Suggestion::Format { keys, samples, .. } = found.suggestion else {
            panic!("no format");
        };
        let lines = keys.iter().map(|key| key.line.replace(' ', ""));
        (lines.collect(), samples)
    }

    fn has(lines: &[String], wanted: &str) -> bool {
        lines.iter().any(|line| line == wanted)
    }

    #[test]
    fn trailer_states_packets_of_images_whose_last_packet_is_lost() {
        let lost = |block| {
            let mut packets = image(block, MONO8, 0);
            if block != 2 {
                packets.remove(packets.len() - 2);
            }
            packets
        };
        let packets: Vec<CapturedPacket> = (1..4).flat_map(lost).collect();
        let (lines, _) = keys(&packets);
        assert!(has(&lines, "packets=53"), "{lines:?}");
        assert!(has(&lines, "last=672"), "{lines:?}");
        // Without any last packet, the leader states the size.
        let whole: Vec<CapturedPacket> = packets
            .into_iter()
            .filter(|packet| packet.length != 680)
            .collect();
        let (lines, _) = keys(&whole);
        assert!(has(&lines, "packets=53"), "{lines:?}");
        assert!(has(&lines, "last=672"), "{lines:?}");
    }

    #[test]
    fn capture_without_a_whole_image_has_the_stated_size() {
        let mut packets = [image(7, MONO8, 0), image(8, MONO8, 0)].concat();
        packets.truncate(80);
        packets.drain(..20);
        let (lines, _) = keys(&packets);
        assert!(has(&lines, "packets=53"), "{lines:?}");
        // Only a leader and the first packets.
        let begin: Vec<CapturedPacket> = image(8, MONO8, 0).into_iter().take(20).collect();
        let (lines, _) = keys(&begin);
        assert!(has(&lines, "packets=53"), "{lines:?}");
        assert!(has(&lines, "last=672"), "{lines:?}");
    }

    #[test]
    fn images_of_two_packets_have_the_size_of_the_first() {
        let short = |block| {
            let all = image(block, MONO8, 0);
            [
                &all[..2],
                &[
                    packet(block, PAYLOAD, 2, &[], 100),
                    packet(block, TRAILER, 3, &[0; 8], 8),
                ],
            ]
            .concat()
        };
        let packets: Vec<CapturedPacket> = (1..9).flat_map(short).collect();
        let (lines, _) = keys(&packets);
        assert!(has(&lines, "payload=1464"), "{lines:?}");
        assert!(has(&lines, "packets=2"), "{lines:?}");
        assert!(has(&lines, "last=100"), "{lines:?}");
    }

    #[test]
    fn chunk_data_are_noted_and_decide_whether_samples_are_set() {
        for (chunk, samples) in [(40, Some("type = \"uint16\"".to_owned())), (41, None)] {
            let packets: Vec<CapturedPacket> = (1..6)
                .flat_map(|block| image(block, MONO16, chunk))
                .collect();
            let found = recognise(&packets.iter().collect::<Vec<_>>()).unwrap();
            let note = format!("each frame ends with {chunk} B of other data");
            assert!(found.ambiguous.iter().any(|text| text.starts_with(&note)));
            assert_eq!(keys(&packets).1, samples);
        }
    }
}
