//! The source `gige`: cameras with GigE Vision.
//!
//! ```text
//!   camera ─ GVSP packets ─▶ socket ─▶ window of open slots ─▶ ring
//!     ▲ ▲                      │
//!     │ └─ requests for lost packets
//!     └─ registers: control, set-up, heartbeat ─ thread of its own
//! ```
//! One source receives from one camera. It takes control of the camera, writes the configured registers, tests which packet size
//! the network carries, and starts the acquisition. Only packets from the camera's address are accepted.
//!
//! # From blocks to frames
//! A block is an image: a leader with its time, size and pixel format, payload packets, and a trailer. The window handles payload
//! packet `n` of a block as packet `n - 1` of a frame. A frame is complete when all its payload packets and its leader have
//! arrived. Packets of a block whose leader does not match the configuration are rejected; if this is so for the first block, the
//! source fails.
//!
//! # Lost packets
//! A packet that `resend_distance` packets have overtaken is requested again, see [`blocks`]. The request is repeated three times
//! at intervals of at least 10 ms, until the frame is closed. At most `resend_limit` packets of a frame are requested.
//!
//! # Ledger
//! The unit is the payload packet.
//!
//! | event | counted as |
//! |---|---|
//! | a packet never arrives, also not after it was requested | lost, `wire_gap`; `kernel_drop` if Linux counted drops at the socket in the meantime |
//! | a packet arrives after its frame was closed | lost, `late` |
//! | a packet arrives twice | `duplicates` |
//! | a packet cannot be parsed, or does not match the configuration | `rejected` |
//! | a leader, a trailer, or the answer that a packet cannot be sent again | `control` |
//! | the ring has no free slot for its frame | lost, `ring_full` |
//!
//! Further counters: `requested`, packets that were requested again; of these, `recovered` arrived because of the request,
//! `reordered` arrived late without it, and `unrecovered` did not arrive before their frame left the window, so that at the end
//! `requested` = `recovered` + `reordered` + `unrecovered`. A recovered packet is also `delivered`, an unrecovered packet is also
//! lost. `unavailable`, packets that the camera could not send again; `mismatched`, leaders that do not match the configuration;
//! `control_errors`, failed control requests; `reconnected`, the number of times that the camera was set up again.
//!
//! If a camera does not mark packets that it sends again (status 0x0100), `reordered` packets count as `recovered`.

pub mod blocks;
mod control;
mod discovery;
mod filler;
pub mod gvcp;
pub mod gvsp;
mod keys;
mod number;
pub mod pixel;
pub mod placer;
mod recognise;
mod setup;
mod supervisor;

use blocks::CameraCounts;
use filler::Receiver;
use keys::GigeConfig;
use placer::{Image, Placer};
use setup::{MIN_PACKET_SIZE, Steps};
use supervisor::{Parts, Supervisor};

use crate::packet::section;
use crate::sender::SenderWatch;
use crate::silence;
use crate::socket::{RECEIVE_BUFFER, SourceSocket};
use crate::sys::socket::{Options, UdpSocket};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{FrameFacts, Registry, SourceContext, SourceEntry, SourceFacts, SourceSpec};
use daq_core::layout::{Axis, Layout, Order};
use daq_core::reorder::Geometry;
use daq_core::source::{Filler, Producers, SourceError};
use daq_core::units::ByteSize;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Maximum number of packets missing in a row, beyond twice the window. A larger gap begins a new epoch.
const MAX_GAP: u64 = 1 << 19;

/// The registry entry of the source.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "gige",
    summary: "A camera with GigE Vision, which daq sets up and starts; lost packets are requested again",
    example: r#"[source.NAME]
driver = "gige"
ring   = "OUTPUT"
camera = "192.168.0.20"       # or { serial = "GV01" }, { mac = "…" }, { model = "…" }; "auto": the only camera
width  = 512                  # the image, as configured in the camera
height = 512
pixel_format = "Mono8"
start  = { address = 0xe00c, value = 1 }   # the register of AcquisitionStart in the camera's description file
stop   = { address = 0xe00c, value = 0 }   # the register of AcquisitionStop
# registers = [{ address = 0xe000, value = 512 }]  # written before the start
# packet_size = 1500          # by default the largest that the network carries
# resend = true               # request lost packets again
# resend_distance = 16        # packets that may overtake a packet before it is requested
# window = 4                  # frames open at the same time
# core   = 2                  # CPU core of the receiving thread
"#,
    schema: |_| {
        let keys = schemars::schema_for!(GigeConfig);
        let defaults = [
            ("window", keys::WINDOW.into()),
            ("receive_buffer", RECEIVE_BUFFER.to_string().into()),
        ];
        section::with_defaults(keys, defaults)
    },
    parse,
    recognise: recognise::RECOGNISERS,
};

/// A source whose configuration was checked.
#[derive(Clone, Debug)]
struct Gige {
    config: GigeConfig,
    image: Image,
    frame_bytes: usize,
}

fn parse(
    section: &mut Section,
    _: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SourceSpec>> {
    let config: GigeConfig = section.finish_checked(&[], diagnostics, GigeConfig::problems)?;
    let image = config.image()?;
    let frame_bytes = usize::try_from(image.bytes()?).ok()?;
    Some(Box::new(Gige {
        config,
        image,
        frame_bytes,
    }))
}

impl SourceSpec for Gige {
    fn facts(&self) -> SourceFacts {
        let listen = self.config.listen;
        let camera = format!("camera {}", self.config.camera);
        let port = (listen.port() != 0).then_some(Claim::UdpPort(listen.into()));
        let missing = self.config.start.is_none();
        let note = "no `start` register is set, so the camera must start by itself";
        SourceFacts {
            claims: port
                .into_iter()
                .chain([Claim::Device(camera.clone())])
                .collect(),
            origins: vec![camera.clone()],
            preferred_slot: Some(self.frame_bytes),
            detected_from: Some("the camera's packet size"),
            counts: vec![CameraCounts::SET],
            cores: self.config.core.into_iter().collect(),
            notes: missing.then(|| note.to_owned()).into_iter().collect(),
            silence_hint: Box::new(move || {
                format!(
                    "{camera}: check that the camera has power and a link, that `start` is the register of AcquisitionStart, and \
                     that no trigger mode waits for a trigger. If leaders and trailers arrive (`control`) but no payload, the packets are \
                     too large for the network: raise the MTU on the path, or set a smaller `packet_size`; {}",
                    silence::hint(&[listen.into()], &[], None, false)
                )
            }),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        if self.frame_bytes > slot_bytes {
            let (frame, slot) = (
                ByteSize(self.frame_bytes as u64),
                ByteSize(slot_bytes as u64),
            );
            let message = format!("images of {frame} do not fit into slots of {slot}");
            let help = format!("set `slot = \"{frame}\"` in the ring's section");
            return Err(Problem::at("width", message).help(help));
        }
        let min = self.config.packet_size.map_or(MIN_PACKET_SIZE, usize::from);
        let geometry = Geometry {
            window: self.config.window(),
            max_gap: MAX_GAP,
            resync_after: crate::packet::keys::default_resync_after(),
            ..placer::geometry(self.frame_bytes, min, true)
        };
        let Image {
            width,
            height,
            format,
        } = self.image;
        let layout = Layout {
            scalar: format.scalar,
            complex: false,
            channels: format.channels,
            points: width as usize * height as usize,
            order: Order::Interleaved,
            axis: Axis::Pixels(daq_core::layout::Image {
                width,
                height,
                colors: format.colors().map(str::to_owned),
                modules: Vec::new(),
            }),
            frame_rate: None,
            is_contiguous: true,
        };
        Ok(FrameFacts {
            memory: filler::MEMORY,
            ..FrameFacts::new(geometry, layout)
        })
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let listen = self.config.listen;
        let options = Options {
            coalesce: true,
            // Until the camera is found; then the socket accepts packets of the camera.
            closed: true,
            ..self.config.socket_keys.options(RECEIVE_BUFFER)
        };
        let failed = |why: String| SourceError::new(format!("UDP {listen}"), why);
        let socket =
            UdpSocket::open(listen.into(), &options).map_err(|why| failed(why.to_string()))?;
        let granted = socket.granted();
        if granted.is_short() {
            tracing::warn!("source {}: {granted}", context.name);
        }
        let stream = socket.as_fd().try_clone_to_owned();
        let counts = CameraCounts::of(&context.counts);
        let supervisor = Supervisor::new(Parts {
            name: context.name.clone(),
            selector: self.config.camera.clone(),
            local: *listen.ip(),
            steps: Steps {
                registers: self.config.registers.clone(),
                start: self.config.start,
                stop: self.config.stop,
                packet_size: self.config.packet_size.map(usize::from),
                port: socket.local().port(),
            },
            stream: stream.map_err(|why| failed(why.to_string()))?,
            counts: counts.clone(),
            obstacle: context.obstacle.clone(),
        });
        let limits = self.config.limits();
        let window = context.geometry.window;
        let placer = Placer::new(&context.name, self.image, window, limits, counts)
            .with_rejections(context.rejections.clone());
        let senders = SenderWatch::new(&context.name, socket.local());
        let socket = SourceSocket::new(Arc::new(socket), senders);
        let receiver = Receiver::new(supervisor, socket, placer);
        Ok(Producers::Fillers(vec![
            Box::new(receiver) as Box<dyn Filler>
        ]))
    }
}
