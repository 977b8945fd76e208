//! The plan as text.

use super::{DoorbellInitiator, Incomplete, Plan, PlannedMethod};
use crate::gpu::Dispatch;
use crate::kernel::Side;
use crate::units::{ByteSize, counted};
use std::fmt::{self, Display};

fn bytes(bytes: usize) -> ByteSize {
    ByteSize(bytes as u64)
}

fn rounded(bytes: usize) -> ByteSize {
    self::bytes(bytes).rounded()
}

fn cores(cores: &[usize]) -> String {
    if cores.is_empty() {
        "any core".to_owned()
    } else {
        format!("core {cores:?}").replace(['[', ']'], "")
    }
}

impl Display for PlannedMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine => "the copy engine",
            Self::Either => "CPU stores below the threshold, copy engine above",
            Self::Stores => "CPU stores",
        })
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pipeline {}", self.name)?;
        for source in &self.sources {
            let flow = if source.supports_backpressure {
                "waits for slots"
            } else {
                "cannot wait"
            };
            writeln!(
                f,
                "\nsource {} ({}) → {}",
                source.name, source.driver, source.ring
            )?;
            for input in &source.inputs {
                writeln!(f, "    input    {input}")?;
            }
            writeln!(f, "    path     {}: {}", source.path.name(), source.reason)?;
            let geometry = &source.geometry;
            match source.detected_from {
                Some(from) => writeln!(
                    f,
                    "    frames   detected from {from}, at most {}, window {}, {flow}",
                    bytes(geometry.frame_bytes),
                    counted(geometry.window, "frame"),
                )?,
                None => writeln!(
                    f,
                    "    frames   {} = {} × {}, window {}, {flow}",
                    bytes(geometry.frame_bytes),
                    geometry.packets_per_frame,
                    bytes(geometry.packet_bytes),
                    counted(geometry.window, "frame"),
                )?,
            }
            let threads = counted(source.threads, "thread");
            writeln!(f, "    runs on  {threads}, {}", cores(&source.cores))?;
            writeln!(f, "    memory   {}", rounded(source.memory))?;
            for note in &source.notes {
                writeln!(f, "    note     {note}")?;
            }
        }
        for ring in &self.rings {
            let inserted = ring
                .inserted
                .as_ref()
                .map(|why| format!("  (inserted: {why})"))
                .unwrap_or_default();
            writeln!(f, "\nring {} @ {}{inserted}", ring.name, ring.placement)?;
            writeln!(f, "    memory   {}", ring.reason)?;
            if !ring.mapping_reason.is_empty() {
                writeln!(f, "    mapping  {}", ring.mapping_reason)?;
            }
            writeln!(
                f,
                "    slots    {} × {} = {}, metadata {}",
                ring.slots,
                bytes(ring.slot_bytes),
                bytes(ring.region_bytes),
                rounded(ring.metadata_bytes),
            )?;
            if ring.is_layout_maximum {
                writeln!(f, "    frames   {:#}", ring.layout)?;
            } else {
                writeln!(f, "    frames   {}", ring.layout)?;
            }
            if !ring.kept.is_empty() {
                writeln!(f, "    kept     {}", ring.kept.join(", "))?;
            }
            let readers = if ring.readers.is_empty() {
                "no reader".to_owned()
            } else {
                ring.readers.join(", ")
            };
            writeln!(f, "    flow     {} → {readers}", ring.producer)?;
        }
        for copy in &self.copies {
            writeln!(f, "\ncopy {} → {}", copy.from, copy.to)?;
            let thread = copy.kernel_thread.as_ref().map_or_else(
                || format!("copy thread for {}", copy.route),
                |kernel| format!("the thread of kernel {kernel}"),
            );
            writeln!(f, "    runs on  {thread}")?;
            writeln!(f, "    method   {}", copy.method)?;
            if !copy.reason.is_empty() {
                writeln!(f, "    path     {}", copy.reason)?;
            }
        }
        for gather in &self.gathers {
            writeln!(f, "\njoin {} → {}", gather.sources(), gather.to)?;
            writeln!(
                f,
                "    runs on  a thread of its own, with a stream on each GPU"
            )?;
            let (what, without) = if gather.is_divided {
                (
                    "parts of frames",
                    "missing parts of a failed GPU are filled and marked",
                )
            } else {
                (
                    "frames, in the order of their numbers",
                    "frames of a failed GPU are missing",
                )
            };
            writeln!(f, "    joins    {what}")?;
            if !gather.guarantee {
                writeln!(f, "    failures {without}; late frames are discarded")?;
            }
        }
        for kernel in &self.kernels {
            writeln!(
                f,
                "\nkernel {} ({}): {} → {}",
                kernel.name, kernel.driver, kernel.input, kernel.output
            )?;
            let side = match kernel.side {
                Side::Cpu => "the CPU".to_owned(),
                Side::Cuda(ordinal) => format!("cuda:{ordinal}"),
            };
            let core: Vec<_> = kernel.core.into_iter().collect();
            writeln!(
                f,
                "    runs on  {side}, {}, bursts of up to {}",
                cores(&core),
                kernel.burst
            )?;
            match kernel.dispatch {
                Some(Dispatch::Launch) => {
                    writeln!(f, "    dispatch launch: one launch per burst")?;
                }
                Some(Dispatch::Persistent) => {
                    writeln!(
                        f,
                        "    dispatch persistent: runs permanently, waits for the doorbell"
                    )?;
                }
                None => {}
            }
            if let Some(doorbell) = &kernel.doorbell {
                let by = match doorbell.initiator {
                    DoorbellInitiator::Cpu => "the CPU",
                    DoorbellInitiator::Device => "the device that writes the frames",
                };
                writeln!(f, "    doorbell rung by {by}, {}", doorbell.location)?;
            }
            writeln!(
                f,
                "    reads    {}",
                reads(kernel.guarantee, kernel.incomplete)
            )?;
            writeln!(f, "    memory   {}", rounded(kernel.memory))?;
        }
        for sink in &self.sinks {
            writeln!(f, "\nsink {} ({}) ← {}", sink.name, sink.driver, sink.input)?;
            for to in &sink.to {
                writeln!(f, "    to       {to}")?;
            }
            let core: Vec<_> = sink.core.into_iter().collect();
            writeln!(
                f,
                "    runs on  {}, bursts of up to {}",
                cores(&core),
                sink.burst
            )?;
            writeln!(f, "    reads    {}", reads(sink.guarantee, sink.incomplete))?;
            writeln!(f, "    memory   {}", rounded(sink.memory))?;
            for note in &sink.notes {
                writeln!(f, "    note     {note}")?;
            }
        }
        for other in &self.others {
            writeln!(f, "\n{}", other.name)?;
            for claim in &other.claims {
                writeln!(f, "    claims   {claim}")?;
            }
            for note in &other.notes {
                writeln!(f, "    note     {note}")?;
            }
        }
        let usable = if self.cores.is_empty() {
            "unknown".to_owned()
        } else {
            self.cores.len().to_string()
        };
        let device = if self.device_memory == 0 {
            String::new()
        } else {
            format!(", GPU memory {}", rounded(self.device_memory))
        };
        writeln!(
            f,
            "\ntotal    memory {}{device}, data threads {}, cores {usable}",
            rounded(self.memory),
            self.threads
        )?;
        for note in &self.notes {
            writeln!(f, "note     {note}")?;
        }
        for missing in &self.unavailable {
            writeln!(f, "missing  {missing}")?;
        }
        Ok(())
    }
}

fn reads(guarantee: bool, incomplete: Incomplete) -> String {
    let frames = match incomplete {
        Incomplete::Pass => "every frame",
        Incomplete::Drop => "every complete frame (incomplete ones are dropped and counted)",
    };
    if guarantee {
        format!("{frames}, with backpressure")
    } else {
        format!("{frames}, without backpressure; overrun frames are lost and counted")
    }
}
