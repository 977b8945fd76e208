//! The keys of a `gige` source.

use super::blocks::ResendLimits;
use super::gvcp::{self, Identity, Mac};
use super::pixel::{FORMATS, PixelFormat};
use super::placer::Image;
use super::setup::MIN_PACKET_SIZE;
use crate::socket::SocketKeys;
use daq_core::config::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Default number of frames open at the same time.
pub(super) const WINDOW: usize = 4;
/// Maximum packet size: the size of the field in the register.
const MAX_PACKET_SIZE: u16 = u16::MAX;

/// The keys of a `gige` source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GigeConfig {
    /// The camera: its address; or `{ serial = "…" }`, `{ mac = "…" }`, `{ model = "…" }` or `{ name = "…" }`, which a
    /// broadcast finds; or `"auto"`, the only camera that answers the broadcast. `ADDRESS:PORT` if its control port is not 3956.
    pub camera: Selector,
    /// Width of the image in pixels, as configured in the camera.
    pub width: u32,
    /// Height of the image in pixels, as configured in the camera.
    pub height: u32,
    /// Pixel format of the image, as configured in the camera: a name of the Pixel Format Naming Convention, such as `"Mono8"`,
    /// `"Mono16"` or `"Mono12p"`. Packed formats end in `p`: kernel `convert` unpacks them.
    pub pixel_format: String,
    /// Registers that are written before the acquisition starts, in this order, such as `[{ address = 0x100, value = 512 }]`.
    /// The description file of the camera contains the addresses: see the page about cameras.
    #[serde(default)]
    pub registers: Vec<Register>,
    /// Register that starts the acquisition (feature `AcquisitionStart`). Without it, the camera must start by itself, for
    /// example by a hardware trigger.
    pub start: Option<Register>,
    /// Register that stops the acquisition (feature `AcquisitionStop`). It is written before the other registers, because a
    /// camera refuses many of them during an acquisition, and when the source ends.
    pub stop: Option<Register>,
    /// Local address and port of the stream. By default, the address from which the camera is reached, and any free port.
    #[serde(default = "any")]
    pub listen: SocketAddrV4,
    /// Size of the packets of the stream in bytes, including IP and UDP headers. By default, the largest of the MTU of the
    /// interface (at most 9000), 1500 and 576 of which a test packet of the camera arrives.
    pub packet_size: Option<u16>,
    /// Whether lost packets are requested again, if the camera supports it.
    #[serde(default = "yes")]
    pub resend: bool,
    /// Number of packets that may overtake a packet before it is considered lost and is requested again.
    #[serde(default = "resend_distance")]
    pub resend_distance: u32,
    /// Maximum number of packets of one frame that are requested again; by default a quarter of its packets, at least 16.
    pub resend_limit: Option<u32>,
    /// Number of frames open at the same time, at least 1. This number limits how long lost packets can be requested
    /// again. A frame with missing packets is published when a packet of a frame `window` frames later arrives, or after 100 ms
    /// without packets.
    pub window: Option<usize>,
    /// CPU core for the receiving thread; by default any core.
    pub core: Option<usize>,
    /// The keys of Linux sockets.
    #[serde(rename = "..socket_keys")]
    #[schemars(flatten)]
    pub socket_keys: SocketKeys,
}

/// A register and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GigeRegister")]
pub(super) struct Register {
    /// Address, a multiple of 4.
    pub(super) address: u32,
    /// Value, 32 bits.
    pub(super) value: u32,
}

/// Selects a camera.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "an address such as \"192.168.0.20\", \"auto\", or a table such as { serial = \"GV01\" }"
)]
#[schemars(rename = "GigeCamera")]
pub(super) enum Selector {
    /// An address, or `"auto"`.
    Text(String),
    /// The identity of a camera.
    Identity(Wanted),
}

/// The identity of a camera. All given values must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GigeIdentity")]
pub(super) struct Wanted {
    /// Serial number.
    serial: Option<String>,
    /// MAC address, such as `"00:11:1c:01:02:03"`.
    mac: Option<String>,
    /// Name of the model.
    model: Option<String>,
    /// Name that a user gave the camera.
    name: Option<String>,
}

/// The value of `camera` that selects the only camera.
const AUTO: &str = "auto";

impl Selector {
    /// Returns the control port of the camera if its address is configured.
    pub(super) fn address(&self) -> Option<SocketAddrV4> {
        let Self::Text(text) = self else {
            return None;
        };
        let with_port = || Some(SocketAddrV4::new(text.parse().ok()?, gvcp::PORT));
        text.parse().ok().or_else(with_port)
    }

    /// Returns whether `camera` is selected.
    pub(super) fn matches(&self, camera: &Identity) -> bool {
        let Self::Identity(wanted) = self else {
            return true;
        };
        wanted.values().into_iter().all(|(key, value)| {
            let is = match key {
                "serial" => &camera.serial,
                "model" => &camera.model,
                "name" => &camera.name,
                _ => return value.to_lowercase().replace('-', ":") == Mac(camera.mac).to_string(),
            };
            is == value
        })
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Text(text) => text == AUTO || self.address().is_some(),
            Self::Identity(wanted) => !wanted.values().is_empty(),
        }
    }
}

impl Wanted {
    fn values(&self) -> Vec<(&'static str, &str)> {
        [
            ("serial", &self.serial),
            ("mac", &self.mac),
            ("model", &self.model),
            ("name", &self.name),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.as_deref()?)))
        .collect()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) if text == AUTO => f.write_str("any identity"),
            Self::Text(text) => f.write_str(text),
            Self::Identity(wanted) => {
                let values = wanted.values();
                let values = values.iter().map(|(key, value)| format!("{key} {value}"));
                f.write_str(&values.collect::<Vec<_>>().join(" and "))
            }
        }
    }
}

const fn any() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)
}

const fn yes() -> bool {
    true
}

const fn resend_distance() -> u32 {
    16
}

impl GigeConfig {
    /// Returns the declared image, or `None` if its pixel format is unknown.
    pub(super) fn image(&self) -> Option<Image> {
        Some(Image {
            width: self.width,
            height: self.height,
            format: PixelFormat::named(&self.pixel_format)?,
        })
    }

    /// Returns the number of frames open at the same time.
    pub(super) fn window(&self) -> usize {
        self.window.unwrap_or(WINDOW)
    }

    /// Returns how lost packets are requested again; `None` if they are not.
    pub(super) fn limits(&self) -> Option<ResendLimits> {
        self.resend.then_some(ResendLimits {
            distance: self.resend_distance,
            per_block: self.resend_limit,
        })
    }

    /// Returns every problem of the configuration.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut must = |holds: bool, key: &str, message: String, help: &str| {
            if !holds {
                found.push(Problem::at(key, message).help(help));
            }
        };
        must(
            self.camera.is_valid(),
            "camera",
            format!("`{}` selects no camera", self.camera),
            "set the camera's IPv4 address, { serial = \"…\" }, { mac = \"…\" }, { model = \"…\" }, { name = \"…\" }, or \"auto\" for \
             the only camera",
        );
        let names = FORMATS.iter().map(|format| format.name);
        must(
            self.image().is_some(),
            "pixel_format",
            format!("pixel format `{}` is not supported", self.pixel_format),
            &format!("set one of {}", names.collect::<Vec<_>>().join(", ")),
        );
        let bytes = self.image().map(|image| image.bytes());
        let is_possible =
            |bytes: Option<u64>| bytes.is_some_and(|bytes| (1..=1 << 31).contains(&bytes));
        must(
            bytes.is_none_or(is_possible),
            "width",
            format!(
                "an image of {} × {} pixels, {}, has no lines of whole bytes, or is not 1 B to 2 GiB large",
                self.width, self.height, self.pixel_format
            ),
            "set `width` and `height` as configured in the camera; in packed pixel formats, a line must be a whole number of \
             bytes: `width` is a multiple of 2 for 4 and 12 bits, of 4 for 10 bits",
        );
        let registers = self.registers.iter().enumerate();
        let registers = registers.map(|(i, register)| (format!("registers[{i}]"), register));
        let commands = [("start", &self.start), ("stop", &self.stop)];
        let commands = commands
            .into_iter()
            .filter_map(|(key, register)| Some((key.to_owned(), register.as_ref()?)));
        for (key, register) in registers.chain(commands) {
            must(
                register.address.is_multiple_of(4),
                &key,
                format!("address {:#x} is not a multiple of 4", register.address),
                "set the address of a 32-bit register",
            );
        }
        must(
            self.packet_size
                .is_none_or(|size| usize::from(size) >= MIN_PACKET_SIZE),
            "packet_size",
            format!("packets must have {MIN_PACKET_SIZE} to {MAX_PACKET_SIZE} bytes"),
            "omit `packet_size` to use the largest size that the network carries",
        );
        must(
            self.window != Some(0),
            "window",
            "`window` must be at least 1 frame".into(),
            "set at least 1",
        );
        must(
            self.resend_limit != Some(0),
            "resend_limit",
            "`resend_limit` must be at least 1 packet".into(),
            "set `resend = false` to request no packets again",
        );
        must(
            !self.listen.ip().is_multicast(),
            "listen",
            format!("{} is a multicast group", self.listen),
            "set an address of this machine; one camera cannot send to several sources",
        );
        must(
            self.socket_keys.from.is_none(),
            "from",
            "`from` cannot be set, because this source accepts only packets of its camera".into(),
            "omit `from`",
        );
        found
    }
}
