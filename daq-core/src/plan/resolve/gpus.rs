//! Which GPU holds a ring or runs a kernel, and the copies between GPUs.

use super::Resolver;
use crate::config::Diagnostics;
use crate::gpu::driver::PeerLink;
use crate::kernel::Side;
use crate::layout::Layout;
use crate::plan::config::at;
use crate::plan::{Plan, PlannedCopy};
use crate::region::Placement;
use crate::staging::Route;
use crate::topology::Topology;

impl Resolver<'_> {
    /// Returns the GPU for the ring `name` with `memory = "auto"`, and the reason: the first GPU, unless all kernels that
    /// read the ring on a GPU declare other GPUs. Returns `None` on a machine without a GPU.
    pub(super) fn auto_gpu(&self, name: &str, layout: &Layout) -> Option<(u32, String)> {
        let first = self.topology.gpus.first()?;
        let kernels = self.config.kernels.iter();
        let readers = kernels.filter(|kernel| kernel.keys.input == name);
        let gpus = readers.filter_map(|kernel| {
            let gpu = match kernel.keys.device {
                Some(device) => device.gpu()?,
                None if kernel.spec.input_facts(layout).runs_on_gpu => first.ordinal,
                None => return None,
            };
            Some((gpu, kernel.name()))
        });
        let gpus: Vec<_> = gpus.collect();
        let is_first = |(gpu, _): &(u32, &str)| *gpu == first.ordinal;
        let other = gpus.first().filter(|_| !gpus.iter().any(is_first));
        Some(match other {
            Some((gpu, kernel)) => (*gpu, format!("kernel `{kernel}` runs on cuda:{gpu}")),
            None => (first.ordinal, format!("the first GPU, {}", first.name)),
        })
    }

    /// Records that `subject` cannot run on this machine if GPU `ordinal` does not exist; `fix` is the remedy.
    pub(super) fn require_gpu(&mut self, ordinal: u32, subject: &str, fix: &str) {
        if !self.topology.is_real || self.topology.gpu_at(ordinal).is_some() {
            return;
        }
        let gpus = self.topology.gpus.iter();
        let gpus = gpus.map(|gpu| format!("cuda:{} ({})", gpu.ordinal, gpu.name));
        let missing = match gpus.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => format!(
                "{}; {fix}. To plan for another machine, run `daq plan --no-hardware`",
                self.topology.no_gpu
            ),
            gpus => format!("this machine has {gpus}; {fix}"),
        };
        self.plan
            .unavailable
            .push(format!("{subject} needs cuda:{ordinal}: {missing}"));
    }

    /// Returns the processor that the key `device` of kernel `i` declares; `None` without the key.
    ///
    /// # Errors
    /// If the kernel does not support this processor; the error has been reported.
    pub(super) fn declared_side(
        &mut self,
        i: usize,
        diagnostics: &mut Diagnostics,
    ) -> Result<Option<Side>, ()> {
        let kernel = &self.config.kernels[i];
        let Some(device) = kernel.keys.device else {
            return Ok(None);
        };
        let name = kernel.name();
        let input = &self.layouts[&kernel.keys.input];
        if !kernel.spec.input_facts(input).runs_on(device.0) {
            let (message, help) = match device.0 {
                Side::Cpu => (
                    format!("kernel `{name}` runs on a GPU only"),
                    "name a GPU, for example device = \"cuda:0\", or remove `device`",
                ),
                Side::Cuda(_) => (
                    format!("kernel `{name}` cannot process these frames on a GPU"),
                    "set device = \"cpu\", or remove `device`",
                ),
            };
            diagnostics.push(at(&kernel.section, "device", message).help(help));
            return Err(());
        }
        if let Side::Cuda(ordinal) = device.0 {
            let input = &kernel.keys.input;
            if self.spreads.contains_key(input) {
                diagnostics.push(
                    at(
                        &kernel.section,
                        "device",
                        format!("ring `{input}` is spread over several GPUs, and kernel `{name}` runs on each of them"),
                    )
                    .help("remove `device`, or set device = \"cpu\" to read the joined frames in host memory"),
                );
                return Err(());
            }
            let fix = "name a GPU of this machine in `device`, or remove `device`";
            self.require_gpu(ordinal, &format!("kernel `{name}`"), fix);
        }
        Ok(Some(device.0))
    }

    /// Returns how GPU `from` writes the memory of GPU `to`.
    ///
    /// # Errors
    /// Returns the obstacle, as a clause, if frames must be copied through host memory.
    pub(super) fn peer_path(&self, from: u32, to: u32) -> Result<String, String> {
        if !self.config.staging.peer_access {
            return Err("`peer_access = false` is declared in [staging]".to_owned());
        }
        match self.topology.peer_link(from, to) {
            Some(link) => Ok(format!("cuda:{from} writes cuda:{to} over {link}")),
            None if !self.topology.is_real => Ok(format!(
                "cuda:{from} writes cuda:{to} if the machine's GPUs can access each other"
            )),
            None => Err(format!("cuda:{from} cannot access the memory of cuda:{to}")),
        }
    }

    /// Returns the ring on GPU `ordinal` with the same frames as `ring`: the ring itself, or a copy of it.
    pub(super) fn device_side(&mut self, ring: &str, ordinal: u32, why: &str) -> String {
        let target = Placement::Cuda(ordinal);
        let Some(found) = self.plan.ring(ring).map(|planned| planned.placement) else {
            return ring.to_owned();
        };
        let device = format!("{ring}@{target}");
        if found == target {
            return ring.to_owned();
        }
        if self.plan.ring(&device).is_some() {
            return device;
        }
        let (from, reason) = match found {
            Placement::Host => (ring.to_owned(), String::new()),
            Placement::Cuda(gpu) => match self.peer_path(gpu, ordinal) {
                Ok(path) => (ring.to_owned(), path),
                Err(obstacle) => {
                    let reason = format!("through host memory, because {obstacle}");
                    (self.host_side(ring, &format!("{why}; {obstacle}")), reason)
                }
            },
        };
        self.insert(&from, &device, target, why, &reason);
        device
    }
}

/// Stages frames to several GPUs from host memory if the frames are in host memory, instead of copying them from the first
/// GPU to the others. DMA engines that write directly to a GPU must be known.
pub(super) fn stage_from_host(plan: &mut Plan, topology: &Topology) {
    for i in 0..plan.copies.len() {
        let copy = &plan.copies[i];
        let Some((from, to)) = copy.route.peers() else {
            continue;
        };
        let Some(staged) = staged_from(plan, copy) else {
            continue;
        };
        let (host, route) = (
            staged.from.clone(),
            Route::between(Placement::Host, copy.route.to()),
        );
        let shared = topology.shared_bridge(from, to);
        let is_nvlink = topology.peer_link(from, to) == Some(PeerLink::NvLink);
        if let (Some(bridge), true) = (shared, is_nvlink) {
            plan.copies[i].reason = format!(
                "cuda:{from} writes cuda:{to} over NVLink, because both GPUs share the PCIe link of {bridge} to host memory"
            );
            continue;
        }
        let Some(route) = route else {
            continue;
        };
        let copy = &mut plan.copies[i];
        let gpu = std::mem::replace(&mut copy.from, host.clone());
        copy.route = route;
        copy.reason = format!(
            "staged from host memory, which has the same frames; cuda:{from} and cuda:{to} are written at the same time"
        );
        let name = copy.name.clone();
        for ring in &mut plan.rings {
            if ring.name == gpu {
                ring.readers.retain(|reader| *reader != name);
            } else if ring.name == host {
                ring.readers.push(name.clone());
            }
        }
    }
}

/// Returns the copy that fills the source ring of `copy` from host memory, if other readers also need that ring.
fn staged_from<'a>(plan: &'a Plan, copy: &PlannedCopy) -> Option<&'a PlannedCopy> {
    let ring = plan.ring(&copy.from)?;
    let is_needed = ring.readers.iter().any(|reader| *reader != copy.name);
    let mut copies = plan.copies.iter();
    copies.find(|staged| is_needed && staged.to == ring.name && staged.route.staged_to().is_some())
}
