//! Tests pixel formats with more than 8 bits: their sample types, and packed formats through the kernel `convert`.

use super::setup::{SIDE, at, config, options};
use daq_emulators::gige::{Camera, Options, fill};
use daq_testkit::network::recording;
use daq_testkit::{Daq, assert_contains};

/// Number of images per run.
const IMAGES: u64 = 4;

/// Returns the bytes of the first images of the emulated camera, each with `bits` bits per pixel.
fn images(bits: usize) -> Vec<u8> {
    let bytes = SIDE.0 as usize * SIDE.1 as usize * bits / 8;
    let mut all = vec![0; bytes * usize::try_from(IMAGES).unwrap()];
    for (image, number) in all.chunks_mut(bytes).zip(0..) {
        fill(number, image);
    }
    all
}

/// Returns numbers of `bits` bits, of which the first is in the low bits of the first byte.
fn unpacked(bytes: &[u8], bits: usize) -> impl Iterator<Item = u16> + '_ {
    let bit = |at: usize| u16::from(bytes[at / 8] >> (at % 8) & 1);
    let number = move |at: usize| (0..bits).map(|i| bit(at + i) << i).sum();
    (0..bytes.len() * 8 / bits).map(move |i| number(i * bits))
}

/// Returns the configuration for images in `format`, written to a file after the kernel `convert` if it is `packed`.
fn of_format(camera: &Camera, format: &str, is_packed: bool) -> String {
    let text = config(&[at(camera.address())], "packet_size = 1064\nwindow = 20");
    let text = text.replace("Mono8", format);
    if !is_packed {
        return text;
    }
    text.replace("input = \"raw0\"", "input = \"pixels\"")
        + "[kernel.unpack]\nuse = \"convert\"\ninput = \"raw0\"\noutput = \"pixels\"\n[ring.pixels]\nmemory = \"host\"\n"
}

#[test]
fn images_of_16_bits_and_packed_pixels_arrive_exactly() {
    for (format, code, bits, datatype) in [
        ("Mono16", 0x0110_0007, 16, "ru16_le"),
        ("Mono10p", 0x010a_0046, 10, "rf32_le"),
        ("Mono12p", 0x010c_0047, 12, "rf32_le"),
        ("BayerRG12p", 0x010c_0059, 12, "rf32_le"),
    ] {
        let is_packed = bits < 16;
        let camera = Camera::start(&Options {
            pixel_format: code,
            ..options(Some(IMAGES))
        })
        .unwrap();
        let daq = Daq::new(&of_format(&camera, format, is_packed));
        let mut live = daq.spawn(&[]);
        live.wait_count("sinks.disk0.frames", IMAGES);
        let _ = live.stop().ok();
        let sent = images(bits);
        let file = recording(&daq, "disk0");
        if is_packed {
            let pixels = unpacked(&sent, bits).map(f32::from);
            let expected: Vec<u8> = pixels.flat_map(f32::to_le_bytes).collect();
            assert!(file.data == expected, "{format}");
        } else {
            assert!(file.data == sent, "{format}");
        }
        assert!(file.missing.is_empty(), "{format}");
        let meta = std::fs::read_to_string(daq.path("out/disk0-000000.sigmf-meta")).unwrap();
        assert_contains!(meta => datatype);
    }
}

#[test]
fn packed_pixels_need_whole_lines_and_a_kernel_before_a_file() {
    let camera = Camera::start(&options(None)).unwrap();
    let daq = Daq::new(&of_format(&camera, "Mono12p", false));
    let done = daq.cli(&["check", "daq.toml"]);
    assert_ne!(done.code, 0);
    assert_contains!(done.stderr => "sink `file` does not support samples of type uint12p", "convert");
    let odd = of_format(&camera, "Mono10p", true).replace("width = 256", "width = 254");
    let done = Daq::new(&odd).cli(&["check", "daq.toml"]);
    assert_ne!(done.code, 0);
    assert_contains!(done.stderr => "254 × 126 pixels, Mono10p", "a multiple of 2 for 4 and 12 bits, of 4 for 10 bits");
    let unknown = of_format(&camera, "Mono12Packed", false);
    let done = Daq::new(&unknown).cli(&["check", "daq.toml"]);
    assert_contains!(done.stderr => "pixel format `Mono12Packed` is not supported", "Mono12p");
}
