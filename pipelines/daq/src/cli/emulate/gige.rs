//! `daq emulate gige`: emulates a camera with GigE Vision.

use super::{address, stop_signals, wait_until};
use crate::cli::{exit, show};
use clap::Args as ClapArgs;
use daq_core::units::Span;
use daq_drivers::gige::pixel::PixelFormat;
use daq_emulators::gige::{CONTROL, Camera, CameraError, Counts, Options};
use daq_pipelines::console::print_error;
use std::net::SocketAddrV4;
use std::str::FromStr;
use std::time::Duration;

/// Arguments of `daq emulate gige`.
#[derive(Debug, ClapArgs)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each field is a switch of the command line"
)]
pub(in crate::cli) struct Args {
    /// Address of the control channel and source address of the stream. Each camera needs its own address; on the loopback
    /// interface use 127.0.0.2, 127.0.0.3 and so on.
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1")]
    listen: Listen,
    /// Serial number.
    #[arg(long, default_value = "EMULATED")]
    serial: String,
    /// Width of the image in pixels. A host can write another width to register 0xe000.
    #[arg(long, value_name = "PIXELS", default_value_t = 512)]
    width: u32,
    /// Height of the image in pixels. A host can write another height to register 0xe004.
    #[arg(long, value_name = "PIXELS", default_value_t = 512)]
    height: u32,
    /// Pixel format. A host can write the code of another format to register 0xe008.
    #[arg(long, value_name = "NAME", default_value = "Mono8")]
    pixel_format: Format,
    /// Time between two images.
    #[arg(long, value_name = "TIME", default_value = "40 ms")]
    interval: Span,
    /// Number of images that the camera sends. A host starts the acquisition with value 1 in register 0xe00c.
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Send 64-bit block ids.
    #[arg(long)]
    extended_ids: bool,
    /// Id of the first block of each acquisition.
    #[arg(long, value_name = "N", default_value_t = 1)]
    first_block: u64,
    /// Do not send packets again.
    #[arg(long)]
    no_resend: bool,
    /// Do not mark packets that are sent again.
    #[arg(long)]
    no_resend_mark: bool,
    /// Send no test packets.
    #[arg(long)]
    no_test_packets: bool,
    /// Exit when a host has ended its control of the camera.
    #[arg(long)]
    once: bool,
    /// Print the final counts as JSON.
    #[arg(long)]
    json: bool,
}

/// An address with an optional port. The default port is that of the control channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listen(SocketAddrV4);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        address(text, CONTROL).map(Self)
    }
}

/// A pixel format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format(PixelFormat);

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        PixelFormat::named(text).map(Self).ok_or_else(|| {
            format!("there is no pixel format {text:?}; write for example \"Mono8\"")
        })
    }
}

fn options(args: &Args) -> Options {
    Options {
        listen: args.listen.0,
        serial: args.serial.clone(),
        width: args.width,
        height: args.height,
        pixel_format: args.pixel_format.0.code,
        interval: args.interval.0.max(Duration::from_micros(1)),
        frames: args.frames,
        extended: args.extended_ids,
        first_block: args.first_block,
        resend: !args.no_resend,
        marks_resent: !args.no_resend_mark,
        test_packets: !args.no_test_packets,
        ..Options::default()
    }
}

/// Formats the counts as text.
fn render(counts: &Counts) -> String {
    let Counts {
        requests,
        controls,
        releases,
        timeouts,
        starts,
        images,
        resends,
        resent,
        unavailable,
        mistakes,
        ..
    } = counts;
    let mut text = format!(
        "{requests} requests; controlled {controls} times, released {releases} times, {timeouts} heartbeat timeouts; \
         started {starts} times; {images} images; {resends} resend requests: {resent} packets sent again, {unavailable} \
         unavailable\n{} protocol errors by the host\n",
        mistakes.len()
    );
    for mistake in mistakes {
        text += &format!("  {mistake}\n");
    }
    text
}

pub(super) fn emulate(args: &Args) -> u8 {
    crate::cli::log::start();
    let (stop, _signal) = match stop_signals() {
        Ok(stop) => stop,
        Err(code) => return code,
    };
    let camera = match Camera::start(&options(args)) {
        Ok(camera) => camera,
        Err(error) => {
            print_error!("error: {error}");
            return match error {
                CameraError::Options(_) => exit::USAGE,
                CameraError::Socket { .. } | CameraError::Thread(_) => exit::UNAVAILABLE,
            };
        }
    };
    let code = show(&format!("listening on {}\n", camera.address()));
    if code != 0 {
        return code;
    }
    let is_left = || args.once && camera.counts().releases > 0;
    if let Err(code) = wait_until(&stop, is_left) {
        return code;
    }
    let counts = camera.stop();
    if !args.json {
        return show(&render(&counts));
    }
    match serde_json::to_string(&counts) {
        Ok(text) => show(&(text + "\n")),
        Err(error) => {
            print_error!("error: cannot format the counts as JSON: {error}");
            exit::INTERNAL
        }
    }
}
