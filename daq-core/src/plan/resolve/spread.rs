//! Resolves spread rings: their shares, the copies that divide and join frames, and kernels that run once per GPU.

use super::Resolver;
use super::rings::{Declared, host_name, host_node};
use crate::config::{Diagnostics, Problem};
use crate::frame::PacketSizes;
use crate::kernel::Side;
use crate::layout::{Layout, Spread};
use crate::plan::config::at;
use crate::plan::spread::divide;
use crate::plan::{
    Memory, PlannedGather, PlannedKernel, PlannedRing, PlannedShare, RingSection, SpreadKey,
};
use crate::region::Placement;
use crate::topology::DataPath;

/// A resolved spread ring.
#[derive(Clone, Debug)]
pub(super) struct SpreadRing {
    by: Spread,
    /// The declared ring as if it were not spread, without its memory.
    whole: PlannedRing,
    /// Names of the shares, in the order of the GPUs.
    shares: Vec<String>,
    gpus: Vec<u32>,
}

impl Resolver<'_> {
    /// Whether `ring` is declared as spread.
    pub(super) fn is_spread(&self, ring: &str) -> bool {
        self.section(ring)
            .is_some_and(|ring| matches!(ring.keys.memory, Memory::Gpus(_)))
    }

    /// Adds the shares of `ring`. `whole` describes the ring as if it were not spread, `producer` returns the producer of a
    /// share. Returns false after an error.
    pub(super) fn add_shares(
        &mut self,
        ring: &RingSection,
        whole: PlannedRing,
        producer: impl Fn(&str, usize) -> String,
        diagnostics: &mut Diagnostics,
    ) -> bool {
        let (Memory::Gpus(gpus), Some(SpreadKey { by, guarantee })) =
            (&ring.keys.memory, ring.keys.spread)
        else {
            return false;
        };
        if whole.is_layout_maximum && by != Spread::Frames {
            diagnostics.push(
                ring.section.problem(
                    Problem::at(
                        "spread",
                        "frames whose size is detected at run time cannot be divided",
                    )
                    .help("set spread = \"frames\", or declare the size of the source's frames"),
                ),
            );
            return false;
        }
        let mut shares = Vec::new();
        for (index, &gpu) in gpus.iter().enumerate() {
            let count = gpus.len();
            let (tile, layout) = match divide(&whole.layout, by, (index, count)) {
                Ok(divided) => divided,
                Err(problem) => {
                    diagnostics.push(ring.section.problem(problem));
                    return false;
                }
            };
            let placement = Placement::Cuda(gpu);
            let subject = format!("ring `{}`", whole.name);
            self.require_gpu(gpu, &subject, "list GPUs of this machine in `memory`");
            let name = format!("{}@{placement}", whole.name);
            let slot_bytes = tile
                .as_ref()
                .map_or(whole.slot_bytes, |(_, tile)| tile.bytes());
            let is_divided = tile.is_some();
            self.plan.rings.push(PlannedRing {
                placement,
                reason: format!("share {} of {count}, by {by}", index + 1),
                slot_bytes,
                layout,
                packets_per_frame: if is_divided {
                    0
                } else {
                    whole.packets_per_frame
                },
                packet_sizes: if is_divided {
                    PacketSizes::default()
                } else {
                    whole.packet_sizes
                },
                supports_backpressure: true,
                producer: producer(&name, index),
                share: Some(PlannedShare {
                    of: whole.name.clone(),
                    index,
                    count,
                    by,
                    guarantee,
                    tile,
                }),
                name: name.clone(),
                ..whole.clone()
            });
            shares.push(name);
        }
        self.spreads.insert(
            whole.name.clone(),
            SpreadRing {
                by,
                whole,
                shares,
                gpus: gpus.clone(),
            },
        );
        true
    }

    /// Adds a spread ring that a source fills: a host ring, and a copy to each share. Returns the ring that the source writes,
    /// the data path and the reason; `None` after an error.
    pub(super) fn add_spread_ring(
        &mut self,
        ring: &RingSection,
        whole: PlannedRing,
        diagnostics: &mut Diagnostics,
    ) -> Option<(String, DataPath, String)> {
        let Memory::Gpus(gpus) = &ring.keys.memory else {
            return None;
        };
        let first = gpus.first().copied().unwrap_or_default();
        let list = list(gpus);
        let staged = PlannedRing {
            name: host_name(&whole.name),
            placement: Placement::Host,
            reason: "sockets and files need host memory".to_owned(),
            inserted: Some(format!("filled by the CPU, then divided among {list}")),
            node: host_node(self.topology, whole.node, Placement::Cuda(first)),
            ..whole
        };
        let staged = self.add_divided(ring, staged, diagnostics)?;
        Some((
            staged,
            DataPath::Staged,
            format!("the driver writes to host memory, but the ring is spread over {list}"),
        ))
    }

    /// Adds `written`, which has the frames of the spread ring `ring`, the shares of the ring, and the copies to them. Returns
    /// the name of `written`; `None` after an error.
    pub(super) fn add_divided(
        &mut self,
        ring: &RingSection,
        written: PlannedRing,
        diagnostics: &mut Diagnostics,
    ) -> Option<String> {
        let (name, placement) = (written.name.clone(), written.placement);
        let whole = PlannedRing {
            name: ring.section.name().to_owned(),
            inserted: None,
            node: ring.keys.node,
            ..written.clone()
        };
        self.plan.rings.push(written);
        let copier = |share: &str, _| format!("copy to {share}");
        if !self.add_shares(ring, whole, copier, diagnostics) {
            return None;
        }
        let spread = self.spreads[ring.section.name()].clone();
        for (share, gpu) in spread.shares.iter().zip(&spread.gpus) {
            let path = match placement {
                Placement::Cuda(from) if from != *gpu => self.gathered_path(from, *gpu, share),
                _ => String::new(),
            };
            let to = (share.as_str(), Placement::Cuda(*gpu));
            let copier = self.add_copy((&name, placement), to, &path);
            self.read_by(&name, &copier);
        }
        Some(name)
    }

    /// Returns how GPU `from` writes the ring `to` on GPU `gpu`. Records that this is impossible if the GPUs cannot access each
    /// other.
    fn gathered_path(&mut self, from: u32, gpu: u32, to: &str) -> String {
        self.peer_path(from, gpu).unwrap_or_else(|obstacle| {
            self.plan.unavailable.push(format!(
                "ring `{to}` gets frames from cuda:{from}: {obstacle}; join the frames in a ring with memory = \"host\" first"
            ));
            obstacle
        })
    }

    /// Returns the host ring with the frames of the spread ring `ring`: the ring from which they are divided, or a new ring in
    /// which they are joined.
    pub(super) fn joined_on_host(&mut self, ring: &str, why: &str) -> String {
        let host = host_name(ring);
        if self.plan.ring(&host).is_none() {
            self.join(ring, (&host, Placement::Host), why);
        }
        host
    }

    /// Inserts a ring called `name` in which the frames of the spread ring `ring` are joined.
    fn join(&mut self, ring: &str, (name, placement): (&str, Placement), why: &str) {
        let spread = self.spreads[ring].clone();
        let first = spread.gpus.first().copied().unwrap_or_default();
        let node = host_node(self.topology, spread.whole.node, Placement::Cuda(first));
        let whole = PlannedRing {
            name: name.to_owned(),
            placement,
            reason: why.to_owned(),
            inserted: Some(why.to_owned()),
            node,
            ..spread.whole.clone()
        };
        self.add_joined(&spread.shares, spread.by, whole);
    }

    /// Adds `ring`, which a gather of the rings `shares` fills.
    fn add_joined(&mut self, shares: &[String], by: Spread, ring: PlannedRing) {
        let share_of = |share: &String| self.plan.ring(share)?.share.as_ref();
        let first = shares.first().and_then(share_of);
        let matrix = first.and_then(|share| Some(share.tile.as_ref()?.0));
        let gather = PlannedGather {
            name: format!("copy to {}", ring.name),
            readers: shares
                .iter()
                .map(|share| format!("copy of {share} to {}", ring.name))
                .collect(),
            from: shares.to_vec(),
            to: ring.name.clone(),
            is_divided: by != Spread::Frames,
            guarantee: first.is_none_or(|share| share.guarantee),
            matrix,
        };
        if let Placement::Cuda(gpu) = ring.placement {
            for share in shares {
                let placement = self.plan.ring(share).map(|ring| ring.placement);
                if let Some(Placement::Cuda(from)) =
                    placement.filter(|from| *from != ring.placement)
                {
                    self.gathered_path(from, gpu, &ring.name);
                }
            }
        }
        for (share, reader) in shares.iter().zip(&gather.readers) {
            self.read_by(share, reader);
        }
        let is_divided = gather.is_divided;
        self.plan.rings.push(PlannedRing {
            producer: gather.name.clone(),
            supports_backpressure: true,
            readers: Vec::new(),
            packets_per_frame: if is_divided {
                0
            } else {
                ring.packets_per_frame
            },
            packet_sizes: if is_divided {
                PacketSizes::default()
            } else {
                ring.packet_sizes
            },
            ..ring
        });
        self.plan.gathers.push(gather);
    }

    /// Whether kernel `i` runs on each GPU of the spread ring that it reads.
    pub(super) fn runs_on_shares(&self, i: usize) -> bool {
        let keys = &self.config.kernels[i].keys;
        let Some(spread) = self.spreads.get(&keys.input) else {
            return false;
        };
        let shares = spread
            .shares
            .iter()
            .filter_map(|share| self.plan.ring(share));
        keys.device.is_none()
            && spread.gpus.iter().zip(shares).all(|(gpu, share)| {
                let spec = &self.config.kernels[i].spec;
                spec.input_facts(&share.layout).runs_on(Side::Cuda(*gpu))
            })
    }

    /// Resolves kernel `i`, which runs on each GPU of the spread ring that it reads. Returns false after an error.
    pub(super) fn kernel_on_shares(
        &mut self,
        i: usize,
        declared: Declared<'_>,
        diagnostics: &mut Diagnostics,
    ) -> bool {
        let config = self.config;
        let kernel = &config.kernels[i];
        let (input, output) = (&kernel.keys.input, &kernel.keys.output);
        let spread = self.spreads[input].clone();
        let name = kernel.name().to_owned();
        let Some(ring) = self.section(output) else {
            return false;
        };
        let whole = &self.declared_ring(ring, &declared);
        self.layouts.insert(output.clone(), whole.layout.clone());
        if spread.by == Spread::Frames
            && let Err(why) = kernel.spec.facts().spread_frames
        {
            diagnostics.push(
                at(
                    &kernel.section,
                    "input",
                    format!(
                        "kernel `{name}` cannot read ring `{input}`, of which each GPU gets only one of {} frames: {why}",
                        spread.gpus.len()
                    ),
                )
                .help("spread the ring by channels or parts"),
            );
            return false;
        }
        // The output of each share must be the same share of the whole output.
        let mut written = Vec::new();
        for (index, (share, &gpu)) in spread.shares.iter().zip(&spread.gpus).enumerate() {
            let Some(read) = self.plan.ring(share).cloned() else {
                return false;
            };
            let layout = match kernel.spec.layout(&read.layout) {
                Ok(layout) => layout,
                Err(problem) => {
                    diagnostics.push(kernel.section.problem(problem));
                    return false;
                }
            };
            let supported = match spread.by {
                Spread::Frames => Ok(()),
                by => (kernel.spec).supports_share(&spread.whole.layout, &read.layout, by),
            };
            if let Err(why) = supported {
                let by = spread.by;
                diagnostics.push(
                    at(
                        &kernel.section,
                        "input",
                        format!("ring `{input}` is spread by {by}, but kernel `{name}` cannot process a share of its frames: {why}"),
                    )
                    .help("spread the ring by frames or along another axis, or read a ring that is not spread"),
                );
                return false;
            }
            let expected = divide(&whole.layout, spread.by, (index, spread.gpus.len()));
            let is_same = |expected: &Layout| {
                (expected.channels, expected.points, expected.order)
                    == (layout.channels, layout.points, layout.order)
            };
            let Some((tile, _)) = expected.ok().filter(|(_, expected)| is_same(expected)) else {
                let by = spread.by;
                diagnostics.push(
                    at(
                        &kernel.section,
                        "input",
                        format!(
                            "ring `{input}` is spread by {by}, but kernel `{name}` needs all {by} of a frame: its output for a share ({layout}) is not a share of its output for a whole frame ({})",
                            whole.layout
                        ),
                    )
                    .help("spread the ring by frames or along another axis, or read a ring that is not spread"),
                );
                return false;
            };
            let share = PlannedShare {
                of: output.clone(),
                tile,
                ..read.share.clone().unwrap_or_else(|| unreachable!())
            };
            written.push((read, layout, share, gpu));
        }
        let declared = ring.keys.spread.zip(match &ring.keys.memory {
            Memory::Gpus(gpus) => Some(gpus.clone()),
            _ => None,
        });
        let is_same = declared
            .as_ref()
            .is_some_and(|(key, gpus)| key.by == spread.by && *gpus == spread.gpus);
        let instance = |gpu: u32| format!("{name}@{}", Placement::Cuda(gpu));
        let mut outputs = Vec::new();
        if is_same {
            let producer = |_: &str, index: usize| instance(spread.gpus[index]);
            if !self.add_shares(ring, whole.clone(), producer, diagnostics) {
                return false;
            }
            outputs.clone_from(&self.spreads[output].shares);
        } else {
            let why = format!("kernel `{name}` runs on each GPU of ring `{input}`");
            for (_, layout, share, gpu) in &written {
                let ring = PlannedRing {
                    name: format!("{output}@{}", instance(*gpu)),
                    placement: Placement::Cuda(*gpu),
                    reason: why.clone(),
                    inserted: Some(why.clone()),
                    slot_bytes: layout.frame_bytes().max(1),
                    layout: layout.clone(),
                    producer: instance(*gpu),
                    share: Some(share.clone()),
                    ..whole.clone()
                };
                outputs.push(ring.name.clone());
                self.plan.rings.push(ring);
            }
        }
        for ((read, _, _, gpu), output) in written.iter().zip(&outputs) {
            self.read_by(&read.name, &instance(*gpu));
            let side = Side::Cuda(*gpu);
            let planned = PlannedKernel {
                name: instance(*gpu),
                input: read.name.clone(),
                output: output.clone(),
                side,
                ..self.planned_kernel(i, side, &read.layout)
            };
            self.plan.threads += 1;
            self.plan.kernels.push(planned);
        }
        if is_same {
            return true;
        }
        match declared {
            None => {
                let (placement, reason) = match ring.keys.memory {
                    Memory::Auto => (
                        Placement::Host,
                        format!(
                            "the frames of {} are joined in host memory",
                            list(&spread.gpus)
                        ),
                    ),
                    _ => self.placement(ring, &whole.layout),
                };
                let first = spread.gpus.first().copied().unwrap_or_default();
                let node = match placement {
                    Placement::Host => host_node(self.topology, whole.node, Placement::Cuda(first)),
                    Placement::Cuda(_) => whole.node,
                };
                let joined = PlannedRing {
                    placement,
                    reason,
                    node,
                    ..whole.clone()
                };
                self.add_joined(&outputs, spread.by, joined);
                true
            }
            Some((key, _)) if key.by == Spread::Frames || spread.by == Spread::Frames => {
                diagnostics.push(
                    at(
                        &ring.section,
                        "spread",
                        format!(
                            "kernel `{name}` produces frames that are spread by {}, which cannot be spread by {} directly",
                            spread.by, key.by
                        ),
                    )
                    .help("join the frames in a ring with one memory first, or spread both rings equally"),
                );
                false
            }
            Some(_) => self.add_turned(ring, whole, (&outputs, spread.by), diagnostics),
        }
    }

    /// Adds the shares of `ring`, each of which a gather fills with its part of the rings `written`: a corner turn.
    fn add_turned(
        &mut self,
        ring: &RingSection,
        whole: &PlannedRing,
        (written, by): (&[String], Spread),
        diagnostics: &mut Diagnostics,
    ) -> bool {
        let before = self.plan.rings.len();
        let copier = |share: &str, _| format!("copy to {share}");
        if !self.add_shares(ring, whole.clone(), copier, diagnostics) {
            return false;
        }
        let shares: Vec<_> = self.plan.rings.drain(before..).collect();
        for share in shares {
            self.add_joined(written, by, share);
        }
        true
    }
}

/// Returns the names of GPUs, separated by commas.
fn list(gpus: &[u32]) -> String {
    let names = gpus.iter().map(|gpu| Placement::Cuda(*gpu).to_string());
    names.collect::<Vec<_>>().join(", ")
}
