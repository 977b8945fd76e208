//! LitePCIe's own gateware as a device. It is generated, compiled by Verilator, and clocked in the device's steps.

use crate::litepcie::sys::{Core, Event};
use daq_emulators::{BARS, EmulatedDevice, Host, Identity, Step};
use daq_testkit::{Python, program, repository};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of cycles without output after which the core is idle if its stream is closed. It is several times the length
/// of the core's pipelines.
const QUIET: u32 = 64;
/// Maximum number of cycles until the core becomes idle.
const LIMIT: u32 = 100_000;
/// Size of BAR 0 in bytes, the same as in the generator.
const BAR: u32 = 128 << 10;

/// Builds the library and csr.csv if they are missing. Returns the directory that contains them, or the reason why they
/// cannot be built.
pub fn built() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> Result<PathBuf, String> {
    for name in ["verilator", "make", "c++"] {
        program(name).ok_or_else(|| format!("{name} is not installed; tests/run installs it"))?;
    }
    let python = Python::with(&["migen", "litex", "litepcie"])?;
    let output = Command::new(repository().join("tests/litepcie/build"))
        .arg(python.path())
        .output()
        .unwrap();
    // If the tools exist, a failed build is a failure of the test, not a reason to skip it.
    assert!(
        output.status.success(),
        "tests/litepcie/build: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(repository().join("target/litepcie"))
}

/// The names of registers and constants in a csr.csv.
#[derive(Clone, Debug)]
pub struct Names {
    registers: HashMap<String, u64>,
    constants: HashMap<String, String>,
}

impl Names {
    /// Parses the text of a csr.csv.
    pub fn parse(text: &str) -> Self {
        let (mut registers, mut constants) = (HashMap::new(), HashMap::new());
        for line in text.lines() {
            let fields: Vec<_> = line.split(',').collect();
            match fields[..] {
                ["csr_register", name, address, ..] => {
                    let address = address.strip_prefix("0x").unwrap();
                    registers.insert(name.to_owned(), u64::from_str_radix(address, 16).unwrap());
                }
                ["constant", name, value, ..] => {
                    constants.insert(name.to_owned(), value.to_owned());
                }
                _ => {}
            }
        }
        Self {
            registers,
            constants,
        }
    }

    /// Returns the offset of a register.
    pub fn register(&self, name: &str) -> u64 {
        *self
            .registers
            .get(name)
            .unwrap_or_else(|| panic!("csr.csv has no register {name}"))
    }

    /// Returns a numeric constant.
    pub fn constant(&self, name: &str) -> u32 {
        self.constants[name].parse().unwrap()
    }
}

/// The device that runs the gateware.
pub struct Gateware {
    core: Core,
    names: Names,
    /// Whether its engines (writer, reader) were enabled when last checked.
    enabled: [bool; 2],
    /// Number of remaining words of the sensor's stream.
    feed: Arc<AtomicU64>,
}

impl Gateware {
    /// Creates a device. Returns the reason if that is not possible.
    pub fn new() -> Result<Self, String> {
        let built = built()?;
        Ok(Self {
            core: Core::load(&built.join("litepcie.so")),
            names: Names::parse(&std::fs::read_to_string(built.join("csr.csv")).unwrap()),
            enabled: [false; 2],
            feed: Arc::new(AtomicU64::new(u64::MAX)),
        })
    }

    /// Returns the names of the device's registers.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the number of remaining words of the sensor's stream. It is unlimited at first and may be changed at any
    /// time.
    pub fn feed(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.feed)
    }

    /// Closes the stream and runs until the core is idle. Returns true if the core did anything.
    fn settle(&mut self, host: &dyn Host) -> bool {
        let mut did = false;
        loop {
            let settled = self.core.settle(QUIET, LIMIT);
            assert!(settled, "the core did not become idle");
            let mut again = false;
            while let Some(event) = self.core.next() {
                did = true;
                match event {
                    Event::Write {
                        address,
                        data,
                        header,
                    } => {
                        assert_eq!(header, if address >> 32 == 0 { 3 } else { 4 });
                        // The bus ignores writes outside mapped memory. Tests detect them with the memory's counters.
                        let _ = host.write(address, &data);
                    }
                    Event::Read {
                        address,
                        bytes,
                        tag,
                    } => {
                        let mut data = vec![0xff; bytes as usize];
                        let _ = host.read(address, &mut data);
                        self.core.complete(tag, address, &data);
                        again = true;
                    }
                    Event::Msi(vector) => host.interrupt(u16::try_from(vector).unwrap()),
                }
            }
            if !again {
                return did;
            }
        }
    }
}

impl EmulatedDevice for Gateware {
    fn identity(&self) -> Identity {
        let mut bars = [0; BARS];
        bars[0] = BAR;
        Identity {
            ids: [0x10ee, 0x7024, 0x10ee, 0x0007],
            class: 0x05_80_00,
            bars,
            vectors: 1,
        }
    }

    fn read(&mut self, bar: usize, offset: u64) -> u32 {
        assert_eq!(bar, 0);
        let value = self.core.read(u32::try_from(offset).unwrap());
        // A completion follows all writes that were emitted before it. The core was idle and its stream is closed, so
        // no write is pending.
        let more = self.core.next();
        assert_eq!(
            more, None,
            "the core must not write while its stream is closed"
        );
        value.expect("registers answer")
    }

    fn write(&mut self, bar: usize, offset: u64, value: u32, host: &dyn Host) {
        assert_eq!(bar, 0);
        self.core.write(u32::try_from(offset).unwrap(), value);
        self.settle(host);
        self.enabled = ["writer", "reader"].map(|engine| {
            let enable = self.names.register(&format!("pcie_dma0_{engine}_enable"));
            self.read(0, enable) & 1 != 0
        });
    }

    fn reset(&mut self) {
        self.core.reset();
        self.enabled = [false; 2];
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        if self.enabled == [false; 2] {
            return Step::Idle;
        }
        // A few hundred cycles correspond to a few microseconds.
        let taken = match self.feed.load(Ordering::Relaxed).min(256) {
            0 => 0,
            words => self.core.run(u32::try_from(words).unwrap(), 256),
        };
        self.feed.fetch_sub(u64::from(taken), Ordering::Relaxed);
        if self.settle(host) || taken > 0 {
            Step::Busy
        } else {
            Step::After(std::time::Duration::from_millis(1))
        }
    }
}
