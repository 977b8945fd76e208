//! Creates configurations of a source `gige`, emulated cameras for them, and the expected bytes.

use daq_emulators::gige::{ACQUISITION, Options, fill};
use daq_testkit::network::{Recording, recording};
use daq_testkit::{Daq, Outcome};
use std::time::Duration;

/// Width and height of the images. The next constants are the bytes per image, the packet size and the payload bytes per packet.
/// The last packet of an image is shorter than the others.
pub const SIDE: (u32, u32) = (256, 126);
pub const IMAGE: usize = 256 * 126;
pub const PACKET_SIZE: usize = 1064;
pub const PAYLOAD: usize = PACKET_SIZE - 36;
/// Payload packets per image.
pub const PACKETS: u64 = IMAGE.div_ceil(PAYLOAD) as u64;

/// Returns the options of a camera on a free port, which sends `frames` images.
pub fn options(frames: Option<u64>) -> Options {
    Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        width: SIDE.0,
        height: SIDE.1,
        interval: Duration::from_millis(5),
        frames,
        ..Options::default()
    }
}

/// Returns a configuration with one source `camN` for each of `cameras`, values of the key `camera`. Each has a ring and a file.
/// `keys` apply to every source.
pub fn config(cameras: &[String], keys: &str) -> String {
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let (width, height) = SIDE;
    for (i, camera) in cameras.iter().enumerate() {
        text += &format!(
            "[source.cam{i}]\ndriver = \"gige\"\nring = \"raw{i}\"\ncamera = {camera}\nwidth = {width}\nheight = {height}\n\
             pixel_format = \"Mono8\"\nstart = {{ address = {ACQUISITION:#x}, value = 1 }}\n\
             stop = {{ address = {ACQUISITION:#x}, value = 0 }}\n{keys}\n\
             [ring.raw{i}]\nmemory = \"host\"\nslots = 128\n\
             [sink.disk{i}]\ndriver = \"file\"\ninput = \"raw{i}\"\npath = \"out\"\nbuffer = \"256 KiB\"\n"
        );
    }
    text
}

/// Returns the value of the key `camera` for a camera with this address.
pub fn at(address: impl std::fmt::Display) -> String {
    format!("\"{address}\"")
}

/// Panics if the file of source `camN` differs from the first `frames` images of the emulated camera in more than the packets that
/// `is_lost` returns true for, which must be annotated as missing.
pub fn assert_file(daq: &Daq, source: usize, frames: u64, is_lost: impl Fn(u64, u64) -> bool) {
    let Recording { data, missing, .. } = recording(daq, &format!("disk{source}"));
    assert_eq!(data.len() as u64, frames * IMAGE as u64);
    let mut lost = Vec::new();
    for frame in 0..frames {
        let mut image = vec![0; IMAGE];
        fill(frame, &mut image);
        let start = usize::try_from(frame).unwrap() * IMAGE;
        for packet in 0..PACKETS {
            let first = usize::try_from(packet).unwrap() * PAYLOAD;
            let bytes = first..(first + PAYLOAD).min(IMAGE);
            let found = &data[start + bytes.start..start + bytes.end];
            if is_lost(frame, packet) {
                lost.extend(start + bytes.start..start + bytes.end);
                assert!(found.iter().all(|byte| *byte == 0), "{frame} {packet}");
            } else {
                assert!(
                    *found == image[bytes],
                    "packet {packet} of frame {frame} differs"
                );
            }
        }
    }
    assert!(
        missing.into_iter().flatten().eq(lost),
        "missing packets are not annotated"
    );
}

/// Returns a count of source `camN`.
pub fn count(outcome: &Outcome, source: usize, key: &str) -> u64 {
    outcome.count(&format!("sources.cam{source}.{key}"))
}
