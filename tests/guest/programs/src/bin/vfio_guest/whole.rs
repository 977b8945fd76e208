//! Checks `daq run` with the guest's devices and the engine `edu`, with rings in host memory and in emulated GPU
//! memory. The GPU is the simulated driver of `tests/simulated_cuda`, whose memory is in the BAR of another device.

use crate::{
    COMMAND, DESTINATION, MAX_COPY, PAGE, Peer, RUN, Result, Stolen, check, ended, fill,
    into_device, into_memory,
};
use daq_core::dma::DmaMap;
use daq_core::region::{HostOptions, Region};
use daq_drivers::fpga::device::{Device, Registers};
use daq_drivers::fpga::transports::vfio::VfioDevice;
use rustix::process::{Pid, PidfdFlags};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Bytes per frame, which is two transfers of the device.
const FRAME: usize = 2 * MAX_COPY;
/// Address of the HTTP server.
const HTTP: &str = "127.0.0.1:9464";
/// The simulated runtime compiler turns this source into a kernel that copies each frame unchanged.
const SAME: &str =
    "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {}";
/// Offset of `PCI_COMMAND` in a configuration space. The next constant is the bit that enables bus mastering.
const PCI_COMMAND: usize = 4;
const BUS_MASTER: u8 = 1 << 2;

/// Runs `daq` with the devices of a case.
pub struct Whole<'a> {
    daq: &'a str,
    edu: &'a str,
    /// The device whose BAR contains the memory of the emulated GPU.
    memory: &'a str,
    folder: PathBuf,
}

/// A run in progress.
struct Running {
    child: Child,
    folder: PathBuf,
}

/// The result of a run.
struct Outcome {
    code: Option<i32>,
    report: Value,
    log: String,
    data: Vec<u8>,
}

impl<'a> Whole<'a> {
    /// Creates a folder for all files. Links the simulated libraries into this folder.
    pub fn new(daq: &'a str, edu: &'a str, memory: &'a str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("daq-whole-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let libraries = Path::new(daq)
            .parent()
            .ok_or("the path of daq has no parent folder")?;
        for (name, library) in [
            ("libcuda.so", "libdaq_simulated_cuda.so"),
            ("libcuda.so.1", "libdaq_simulated_cuda.so"),
            ("libnvrtc.so", "libdaq_simulated_cuda.so"),
            ("libgdrapi.so.2", "libdaq_simulated_gdr.so"),
        ] {
            let library = libraries.join(library);
            if !library.exists() {
                return Err(format!("{} was not built", library.display()).into());
            }
            std::os::unix::fs::symlink(library, folder.join(name))?;
        }
        Ok(Self {
            daq,
            edu,
            memory,
            folder,
        })
    }

    /// Returns a configuration in which `edu` fills a ring in host memory. The frames pass through a kernel and are
    /// written to files.
    fn for_host(&self, keys: &str) -> String {
        let mut config = self.source(keys);
        config += "
            [ring.raw]
            memory = \"host\"
            slot = \"4 KiB\"
            slots = 4
            [kernel.convert]
            use = \"convert\"
            input = \"raw\"
            output = \"floats\"
            [ring.floats]
            memory = \"host\"
            slots = 8
            [sink.disk]
            driver = \"file\"
            input = \"floats\"
            path = \"out\"
        ";
        config
    }

    /// Returns a configuration in which `edu` fills a ring on a GPU. The frames pass through a kernel on the GPU and
    /// are written to files.
    fn for_gpu(&self) -> String {
        let mut config = self.source("path = \"direct\"");
        let _ = write!(
            config,
            "
            [ring.raw]
            memory = \"cuda:0\"
            slot = \"4 KiB\"
            slots = 8
            [kernel.same]
            file = \"same.cu\"
            input = \"raw\"
            output = \"back\"
            [ring.back]
            memory = \"cuda:0\"
            slots = 8
            [sink.disk]
            driver = \"file\"
            input = \"back\"
            path = \"out\"
            [http]
            listen = \"{HTTP}\"
        "
        );
        config
    }

    fn source(&self, keys: &str) -> String {
        format!(
            "
            [source.card]
            driver = \"fpga\"
            ring = \"raw\"
            device = \"{}\"
            engine = \"edu\"
            samples = {{ type = \"int16\", rate = \"20 kHz\" }}
            {keys}
        ",
            self.edu
        )
    }

    fn start(&self, name: &str, config: &str, arguments: &[&str]) -> Result<Running> {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("daq.toml"), config)?;
        fs::write(folder.join("same.cu"), SAME)?;
        let bar = format!(
            "bar=/sys/bus/pci/devices/{}/resource2_wc,memory=16MiB",
            self.memory
        );
        let child = Command::new(self.daq)
            .args(["run", "daq.toml", "--report", "json", "--state-dir", "."])
            .args(arguments)
            .current_dir(&folder)
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("DAQ_SIMULATED_CUDA", bar)
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("report"))?)
            .stderr(File::create(folder.join("log"))?)
            .spawn()?;
        Ok(Running { child, folder })
    }

    fn run(&self, name: &str, config: &str, arguments: &[&str]) -> Result<Outcome> {
        self.start(name, config, arguments)?.end()
    }

    /// Fills the device's buffer. Returns the part of it that the device sends.
    fn fill(&self) -> Result<Vec<u8>> {
        let device = VfioDevice::open(self.edu, Some(Path::new(self.daq)))?;
        let map = || -> Result<_> {
            let options = HostOptions {
                shared: true,
                ..HostOptions::default()
            };
            let region = Region::host(PAGE, options)?;
            Ok(DmaMap::new(device.clone().as_dma(), region)?)
        };
        // The device with a defective address line cannot access the first of the two maps.
        let (_first, second) = (map()?, map()?);
        let words = fill(second.region(), 9)?;
        let address = u32::try_from(second.address())?;
        into_device(&*device.registers(0)?, address, MAX_COPY);
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        Ok(bytes.take(MAX_COPY).collect())
    }

    /// Returns whether bus mastering of the device is enabled.
    fn is_master(&self) -> Result<bool> {
        let config = fs::read(format!("/sys/bus/pci/devices/{}/config", self.edu))?;
        Ok(config[PCI_COMMAND] & BUS_MASTER != 0)
    }

    /// Checks a device that is not bound to VFIO. The run must fail with a helpful message.
    pub fn unbound(&self) -> Result {
        let done = self.run("unbound", &self.for_host(""), &["--frames", "raw=1"])?;
        check(
            "run, unbound: daq exits with status 69",
            done.code == Some(69),
            || done.described(),
        );
        let remedy = format!("/sys/bus/pci/devices/{}/driver_override", self.edu);
        check(
            "run, unbound: the commands that bind the device are reported",
            done.log.contains(&remedy),
            || done.described(),
        );
        Ok(())
    }

    /// Checks data through host memory, and repeated starts and stops.
    pub fn host(&self) -> Result {
        let payload = self.fill()?;
        let floats: Vec<u8> = payload
            .as_chunks()
            .0
            .iter()
            .flat_map(|pair| f32::from(i16::from_le_bytes(*pair)).to_le_bytes())
            .collect();
        let done = self.run("host", &self.for_host(""), &["--frames", "floats=3"])?;
        done.check("run, host memory", &floats, 3, "verified", 0);
        let mut problems = Vec::new();
        for round in 0..10 {
            let keys = ["", "completion = \"interrupt\""][round % 2];
            let config = self.for_host(keys);
            let done = self.run(&format!("start-{round}"), &config, &["--frames", "raw=1"])?;
            if let Some(problem) = done.problem(&floats, 1) {
                problems.push(format!("round {round}: {problem}"));
            }
            if self.is_master()? || owner_of(None)?.is_some() {
                problems.push(format!(
                    "round {round}: bus mastering is on, or a guard process still runs"
                ));
            }
        }
        check(
            "run: ten starts and stops write every byte and leave nothing behind",
            problems.is_empty(),
            || problems.join("\n"),
        );
        Ok(())
    }

    /// Checks data that is written directly to the emulated GPU memory.
    pub fn direct(&self) -> Result {
        let payload = self.fill()?;
        let peer = Peer::open(self.memory, "resource2_wc")?;
        let done = self.run("direct", &self.for_gpu(), &["--frames", "back=3"])?;
        done.check("run, peer to peer", &payload, 3, "verified", 0);
        let words: Vec<u32> = payload
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        // The frames of both rings are still in the memory, because the simulated driver does not change memory when it
        // is freed.
        let frames = (0..peer.bar.bytes())
            .step_by(FRAME)
            .filter(|at| {
                (0..FRAME / 4).all(|i| peer.bar.read(at + 4 * i) == words[i % words.len()])
            })
            .count();
        check(
            "run, peer to peer: the other device contains the frames",
            frames >= 6,
            || format!("expected at least 6 frames, found {frames}"),
        );
        Ok(())
    }

    /// Checks a device that reports transfers whose data never arrives. A defective address line makes it write to
    /// other addresses.
    pub fn disproved(&self) -> Result {
        let payload = self.fill()?;
        let mut running = self.start("disproved", &self.for_gpu(), &[])?;
        running.wait_for("data path verified")?;
        let metrics = metrics()?;
        let count = metrics
            .lines()
            .find(|line| line.starts_with("daq_path_fallback_total"));
        check(
            "run, disproved: daq_path_fallback_total is 1",
            count.is_some_and(|line| line.ends_with(" 1")),
            || format!("{count:?}"),
        );
        let pid = Pid::from_child(&running.child);
        // More frames than the verified one must arrive.
        running.wait_for_data()?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let done = running.end()?;
        let described =
            "the direct path does not work on this machine, so frames now go through host memory";
        check(
            "run, disproved: the log explains the fallback",
            done.log.contains(described),
            || done.described(),
        );
        done.check("run, disproved", &payload, 1, "failed", 1);
        Ok(())
    }

    /// Checks a daemon that is killed.
    pub fn killed(&self) -> Result {
        let payload = self.fill()?;
        let mut peer = Peer::open(self.memory, "resource2_wc")?;
        let mut running = self.start("killed", &self.for_gpu(), &[])?;
        running.wait_for("data path verified")?;
        let owner =
            owner_of(Some(running.child.id()))?.ok_or("daq has started no guard process")?;
        println!("ok run, killed: daq has started its guard process, daq fpga-guard");
        let owner = rustix::process::pidfd_open(owner, PidfdFlags::empty())?;
        let engine = Stolen::from(&running.child)?;
        running.kill()?;
        ended(&owner)?;
        check(
            "run, killed: bus mastering is off",
            !self.is_master()?,
            || "bus mastering is on".to_owned(),
        );
        let target = engine.read(DESTINATION);
        peer.fill(3);
        while engine.read(COMMAND) & RUN != 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        into_memory(&engine, target, MAX_COPY);
        peer.check("run, killed: nothing is written to GPU memory");
        engine.enable()?;
        into_memory(&engine, target, MAX_COPY);
        peer.check("run, killed: even a running device writes nothing");
        drop(engine);
        // This time, only the guard process runs between the kill and the next start.
        let mut running = self.start("again", &self.for_gpu(), &[])?;
        running.wait_for("data path verified")?;
        running.kill()?;
        let done = self.run("at-once", &self.for_gpu(), &["--frames", "raw=2"])?;
        done.check(
            "run, killed: daq can start again immediately",
            &payload,
            2,
            "verified",
            0,
        );
        Ok(())
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Running {
    fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.join("log"))?)
    }

    /// Waits until `is_so` returns true. Returns an error if the run ends before.
    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result {
        while !is_so(self)? {
            if let Some(status) = self.child.try_wait()? {
                let log = self.log()?;
                return Err(format!("daq run ended ({status}) before {what}:\n{log}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn wait_for(&mut self, text: &str) -> Result {
        self.wait_until(text, |running| Ok(running.log()?.contains(text)))
    }

    fn wait_for_data(&mut self) -> Result {
        self.wait_until("publishing two frames", |_| {
            let published = "daq_ring_published_frames_total";
            let metrics = metrics()?;
            let lines = metrics.lines().filter(|line| line.starts_with(published));
            let mut counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            Ok(counts.any(|count| count >= 2))
        })
    }

    fn kill(&mut self) -> Result {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn end(mut self) -> Result<Outcome> {
        let status = self.child.wait()?;
        let report = fs::read(self.folder.join("report"))?;
        let mut segments: Vec<PathBuf> = fs::read_dir(self.folder.join("out"))
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "sigmf-data"))
            .collect();
        segments.sort();
        let mut data = Vec::new();
        for segment in segments {
            data.extend(fs::read(segment)?);
        }
        Ok(Outcome {
            code: status.code(),
            report: serde_json::from_slice(&report).unwrap_or_default(),
            log: self.log()?,
            data,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outcome {
    fn described(&self) -> String {
        format!("status {:?}, and its log:\n{}", self.code, self.log)
    }

    /// Returns what is wrong with the run; `None` if it succeeded and wrote at least `frames` whole frames that repeat
    /// `part`.
    fn problem(&self, part: &[u8], frames: usize) -> Option<String> {
        let frame = part.len() * (FRAME / MAX_COPY);
        if self.code != Some(0) {
            return Some(self.described());
        }
        let bytes = self.data.len();
        if bytes < frames * frame || !bytes.is_multiple_of(frame) {
            return Some(format!(
                "expected at least {frames} whole frames of {frame} bytes, found {bytes} bytes; {}",
                self.described()
            ));
        }
        let wrong = self
            .data
            .iter()
            .zip(part.iter().cycle())
            .position(|(is, wanted)| is != wanted);
        wrong.map(|at| format!("byte {at} of {bytes} is wrong"))
    }

    fn check(&self, name: &str, part: &[u8], frames: usize, path: &str, fallbacks: u64) {
        let problem = self.problem(part, frames);
        check(
            &format!("{name}: every byte is in the file"),
            problem.is_none(),
            || problem.unwrap_or_default(),
        );
        let engine = &self.report["sources"]["card"]["engine"];
        check(
            &format!("{name}: the path is {path}, with {fallbacks} path fallbacks"),
            engine["path"] == path && engine["fallbacks"] == fallbacks,
            || format!("{engine}; {}", self.described()),
        );
    }
}

/// Returns the guard process, of the daemon `parent` if given.
fn owner_of(parent: Option<u32>) -> Result<Option<Pid>> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let path = entry.path();
        // Processes may end in the meantime.
        let (Ok(command), Ok(status)) = (
            fs::read_to_string(path.join("cmdline")),
            fs::read_to_string(path.join("status")),
        ) else {
            continue;
        };
        let is_owner = command.split('\0').nth(1) == Some("fpga-guard");
        let is_of = |pid| status.lines().any(|line| line == format!("PPid:\t{pid}"));
        if is_owner && parent.is_none_or(is_of) {
            let pid = entry.file_name().to_string_lossy().parse()?;
            return Ok(Pid::from_raw(pid));
        }
    }
    Ok(None)
}

/// Returns the metrics that a run reports over HTTP.
fn metrics() -> Result<String> {
    let mut stream = TcpStream::connect(HTTP)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
