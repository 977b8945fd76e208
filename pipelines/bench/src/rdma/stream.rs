//! Configures whole pipelines. The sender has a source that generates zeros, a ring and the sink `stream`. The receiver
//! has the source `stream`, a ring and the sink `null`.

use super::control::{ControlConnection, Reply, Request};
use crate::BenchError;
use daq_diagnostics::fixture::{Environment, failed, free_port};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Ring size in bytes. The actual size is rounded to a multiple of the slot size.
const RING: usize = 32 << 20;
const MAX_SLOTS: usize = 256;

/// Options shared by all pipelines of the benchmark.
pub(super) struct Bench {
    pub(super) environment: Environment,
    pub(super) nics: Vec<String>,
    pub(super) device: u32,
}

impl Bench {
    fn ring(&self, name: &str, is_gpu: bool, size: usize) -> String {
        let memory = if is_gpu {
            format!("cuda:{}", self.device)
        } else {
            "host".to_owned()
        };
        let slots = (RING / size).clamp(8, MAX_SLOTS);
        format!("[ring.{name}]\nmemory = \"{memory}\"\nslot = {size}\nslots = {slots}\n")
    }

    /// Returns the configuration of the sender. If the ring is on a GPU, the pipeline contains a kernel that writes the
    /// frames to GPU memory, because without a kernel the sink reads them from host memory.
    fn sender(&self, is_gpu: bool, size: usize, path: &str, to: SocketAddr) -> String {
        let (made, kernel) = if is_gpu {
            let made = self.ring("made", is_gpu, size);
            let kernel = "[kernel.make]\nuse = \"convert\"\ninput = \"made\"\noutput = \"raw\"\n";
            ("made", made + kernel)
        } else {
            ("raw", String::new())
        };
        format!(
            "[source.adc]\ndriver = \"sim\"\nring = \"{made}\"\npattern = \"silence\"\npacket = {size}\n\
             backpressure = true\npace = \"free\"\nsamples = {{ type = \"float32\" }}\n{kernel}{}\
             [sink.far]\ndriver = \"stream\"\ntransport = \"rdma\"\ninput = \"raw\"\nto = \"{to}\"\nnics = {:?}\npath = \"{path}\"\n\
             guarantee = true\n",
            self.ring("raw", is_gpu, size),
            self.nics
        )
    }

    fn receiver(&self, is_gpu: bool, size: usize, path: &str, at: SocketAddr) -> String {
        format!(
            "[source.link]\ndriver = \"stream\"\ntransport = \"rdma\"\nring = \"raw\"\nlisten = \"{at}\"\nnics = {:?}\npath = \"{path}\"\n\
             {}[sink.nothing]\ndriver = \"null\"\ninput = \"raw\"\nguarantee = true\n",
            self.nics,
            self.ring("raw", is_gpu, size)
        )
    }

    /// Measures the rate of frames that the source on the other side has acknowledged, in bytes per second.
    pub(super) fn send(
        &self,
        (is_gpu, size, path): (bool, usize, &str),
        to: SocketAddr,
        window: Duration,
    ) -> Result<f64, BenchError> {
        let pipeline = self
            .environment
            .start(&self.sender(is_gpu, size, path, to))?;
        let measured = pipeline.await_sent("far", 1).and_then(|first| {
            let start = Instant::now();
            std::thread::sleep(window);
            // Linux may not have scheduled the sender yet, so wait for another frame.
            let last = pipeline.await_sent("far", first + 1)?;
            Ok(((last - first) * size as u64) as f64 / start.elapsed().as_secs_f64())
        });
        let report = pipeline.end();
        let rate = measured?;
        report?;
        Ok(rate)
    }

    /// Serves the listening side: runs a source until the other side has finished.
    pub(super) fn serve(
        &self,
        wire: &mut ControlConnection,
        here: IpAddr,
        (is_gpu, size, path): (bool, usize, &str),
    ) -> Result<(), BenchError> {
        let port = free_port(here)?;
        let text = self.receiver(is_gpu, size, path, (here, port).into());
        let pipeline = self.environment.start(&text)?;
        wire.send(&Reply::Ready { port })?;
        let end: Request = wire.receive()?;
        let report = pipeline.end()?;
        if !matches!(end, Request::End) {
            return Err(failed("the other side did not send the end of its request"));
        }
        let source = report.sources.get("link").cloned().unwrap_or_default();
        if !source.loss().is_none() {
            let why = format!("{}; this is a defect in daq", source.loss());
            return Err(failed(why));
        }
        Ok(())
    }
}
