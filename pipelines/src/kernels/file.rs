//! `file` runs a user's kernel: CUDA C++, PTX or machine code.
//!
//! The key `file` in a section `[kernel.NAME]` selects it, instead of the key `use`. The header [`HEADER`] defines the
//! contents of such a file; `daq reference kernel-header` prints it.
//!
//! | file | noun |
//! |---|---|
//! | `examine` | checks the code without a GPU |
//! | `frame` | describes output frames |
//! | `params` | writes values from the configuration into the user's `struct Params` |
//! | `unit` | builds the compiled text from the user's file and added lines |
//! | `message` | shows compiler messages with the user's lines |
//! | `code` | loads the user's code on the device |
//! | `record` | encodes the metadata of an input frame |
//! | `launch` | runs a kernel that is launched for each burst |
//! | `persistent` | the persistent kernel |

mod check;
mod code;
mod frame;
mod launch;
mod message;
mod params;
mod persistent;
mod record;
#[cfg(test)]
mod tests;
mod unit;

pub use frame::{AxisKey, FrameKeys};
pub use params::Value;

use super::{defect, not_empty, require};
use daq_core::check::{CheckContext, CheckReport, FileUse, NamedFile};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::gpu::Dispatch;
use daq_core::gpu::driver::{CompileError, Compiler, Device, Target};
use daq_core::kernel::{
    InputFacts, Kernel, KernelContext, KernelError, KernelFacts, KernelSpec, Side,
};
use daq_core::layout::Layout;
use daq_core::plan::FILE_KERNEL;
use daq_core::units::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The header for compiling your own kernels.
pub const HEADER: &str = include_str!("daq.cuh");

/// Maximum number of threads per block on any device.
const MAX_THREADS: u32 = 1024;
/// Number of threads of a warp.
const WARP: u32 = 32;
/// Maximum number of blocks per frame.
const MAX_BLOCKS: u32 = 65_535;
/// Maximum number of frames that a persistent kernel can process concurrently.
const MAX_CONCURRENT_FRAMES: u32 = 4096;
/// Number of input bytes per thread, if the number of blocks is not configured.
const BYTES_PER_THREAD: usize = 64;
/// Maximum number of blocks per frame, if the number is not configured.
const DEFAULT_MAX_BLOCKS: usize = 256;
/// Upper limit for the key `shared` in bytes. It is larger than the shared memory per block of any device.
const MAX_SHARED: u64 = 1 << 20;

/// Registry entry of kernel files.
pub const ENTRY: KernelEntry = KernelEntry::of::<FileKernel>(
    FILE_KERNEL,
    "Runs your own CUDA code on a GPU, from a .cu, .ptx or .cubin file",
    "\
[kernel.NAME]
# The code. `daq reference kernel-header` prints the header daq.cuh, which describes the contents of this file.
file = \"my.cu\"
input = \"INPUT\"
output = \"OUTPUT\"
# Values for members of the code's `struct Params`; other members keep their defaults.
# params = { gain = 2.5, taps = [1, 2, 1, 0] }
# Description of output frames; omitted keys are as in the input.
# frame = { type = \"float32\" }
# Number of frames that a persistent kernel (dispatch = \"persistent\") processes concurrently.
# concurrent_frames = 1
# Number of blocks per frame; default: from the size of the frame.
# blocks = 64
# Number of threads per block.
# threads = 256
# Dynamic shared memory per block.
# shared = \"0 B\"
# Options for the compiler of .cu files.
# options = [\"--use_fast_math\"]
",
);

/// Keys of a kernel file.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileKernel {
    /// The code: CUDA C++ (`.cu`), which is compiled at startup, PTX (`.ptx`) or machine code (`.cubin`). Relative
    /// paths start at the working directory.
    pub file: String,
    /// Values for members of the code's `struct Params`: numbers, booleans and arrays of them. Members that are not
    /// listed keep the defaults in the code.
    #[serde(default)]
    pub params: BTreeMap<String, Value>,
    /// Description of output frames. Omitted keys have the values of the input.
    #[serde(default)]
    pub frame: FrameKeys,
    /// Number of blocks per frame, 1 to 65535. Default: enough blocks for 64 bytes of input per thread, at most 256.
    pub blocks: Option<u32>,
    /// Number of frames that a kernel with `dispatch = "persistent"` processes concurrently, 1 to 4096. Groups of `blocks`
    /// blocks process the frames in turn. Default: 1.
    pub concurrent_frames: Option<u32>,
    /// Threads per block, a multiple of 32 up to 1024.
    #[serde(default = "default_threads")]
    pub threads: u32,
    /// Dynamic shared memory per block, such as `"16 KiB"`; default none.
    pub shared: Option<ByteSize>,
    /// Name of the kernel in a `.ptx` or `.cubin` file that contains several kernels; default: the kernel that
    /// `DAQ_KERNEL` defines.
    pub entry: Option<String>,
    /// Compiler options for `.cu` files, such as `"--use_fast_math"` or `"-I/usr/local/cuda/include"`.
    #[serde(default)]
    pub options: Vec<String>,
}

const fn default_threads() -> u32 {
    256
}

/// Type of a kernel file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Source,
    Ptx,
    Cubin,
}

impl FileKernel {
    /// Creates a kernel of `file` with default settings.
    pub fn new(file: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            params: BTreeMap::new(),
            frame: FrameKeys::default(),
            blocks: None,
            concurrent_frames: None,
            threads: default_threads(),
            shared: None,
            entry: None,
            options: Vec::new(),
        }
    }

    fn code(&self) -> Option<Code> {
        match Path::new(&self.file).extension()?.to_str()? {
            "cu" => Some(Code::Source),
            "ptx" => Some(Code::Ptx),
            "cubin" => Some(Code::Cubin),
            _ => None,
        }
    }

    /// Returns the number of blocks for a frame of `input`.
    fn blocks(&self, input: &Layout) -> u32 {
        self.blocks.unwrap_or_else(|| {
            let block = self.threads as usize * BYTES_PER_THREAD;
            let blocks = input
                .frame_bytes()
                .div_ceil(block)
                .clamp(1, DEFAULT_MAX_BLOCKS);
            u32::try_from(blocks).unwrap_or(MAX_BLOCKS)
        })
    }

    fn read(&self, directory: &Path) -> Result<(PathBuf, Vec<u8>), KernelError> {
        let path = directory.join(&self.file);
        let bytes = daq_core::file::read(&path).map_err(|error| {
            KernelError::Refused(format!(
                "`file`: cannot read {}: {error}; write a path relative to {}, or an absolute path",
                path.display(),
                std::path::absolute(directory).map_or_else(
                    |_| "the working directory".to_owned(),
                    |from| from.display().to_string()
                )
            ))
        })?;
        Ok((path, bytes))
    }

    /// Returns machine code or PTX for the compute capability `capability`.
    fn image(
        &self,
        directory: &Path,
        capability: (i32, i32),
        entry: unit::Entry,
    ) -> Result<Vec<u8>, KernelError> {
        let (path, bytes) = self.read(directory)?;
        if self.code() != Some(Code::Source) {
            return Ok(bytes);
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            KernelError::Refused(format!(
                "`file`: byte {at} of {} is not valid UTF-8; save the source in UTF-8",
                path.display()
            ))
        })?;
        let compiler = Compiler::find().map_err(|error| no_compiler(&self.file, &error))?;
        let target = Target::Cubin(capability.0, capability.1);
        self.compile(compiler, &text, path.parent(), target, entry)
    }

    /// Builds the text to compile from the user's file in `directory` and the lines that daq adds.
    fn unit<'a>(
        &'a self,
        text: &'a str,
        directory: Option<&'a Path>,
        entry: unit::Entry,
    ) -> unit::Unit<'a> {
        unit::Unit {
            entry,
            name: &self.file,
            text,
            directory,
            params: self.params.keys().map(String::as_str).collect(),
            threads: self.threads,
            options: &self.options,
        }
    }

    /// Compiles the user's file, which is located in `directory`.
    fn compile(
        &self,
        compiler: Compiler,
        text: &str,
        directory: Option<&Path>,
        target: Target,
        entry: unit::Entry,
    ) -> Result<Vec<u8>, KernelError> {
        let unit = self.unit(text, directory, entry);
        unit.compile(compiler, target).map_err(|error| match error {
            CompileError::Refused { log } => KernelError::Refused(message::compile_error(&unit, &log)),
            CompileError::NoCompiler { .. } => no_compiler(&self.file, &error),
            CompileError::Failed { .. } => KernelError::Unavailable(format!(
                "cannot compile {} for {target}: {error}; compile it with nvcc to a .cubin or .ptx file, check \
                 `options`, or install a compiler that supports the GPU (this is libnvrtc {}.{})",
                self.file,
                compiler.version().0,
                compiler.version().1
            )),
        })
    }
}

fn no_compiler(file: &str, error: &CompileError) -> KernelError {
    KernelError::Unavailable(format!(
        "cannot compile {file}: {error}; or compile it with nvcc on another machine and set `file` to the .cubin or .ptx file"
    ))
}

/// Returns whether `option` is a compiler option that daq itself sets.
fn is_ours(option: &str) -> bool {
    ["--gpu-architecture", "-arch"]
        .iter()
        .any(|ours| option.starts_with(ours))
}

impl FileKernel {
    /// Checks everything that does not depend on the input.
    fn check(&self) -> Result<(), Problem> {
        let Some(code) = self.code() else {
            return Err(
                Problem::at("file", format!("{:?} is not a kernel file", self.file))
                    .help("use a file whose name ends in .cu (CUDA C++), .ptx or .cubin"),
            );
        };
        let (file, is_source) = (&self.file, code == Code::Source);
        require(
            (1..=MAX_THREADS).contains(&self.threads) && self.threads.is_multiple_of(WARP),
            "threads",
            format!("`threads` cannot be {}", self.threads),
            "write a multiple of 32 from 32 to 1024; 256 is suitable for most kernels",
        )?;
        for (key, value, max) in [
            ("blocks", self.blocks, MAX_BLOCKS),
            (
                "concurrent_frames",
                self.concurrent_frames,
                MAX_CONCURRENT_FRAMES,
            ),
        ] {
            let value = value.unwrap_or(1);
            require(
                (1..=max).contains(&value),
                key,
                format!("`{key}` cannot be {value}"),
                format!("write 1 to {max}"),
            )?;
        }
        let shared = self.shared.unwrap_or_default();
        require(
            shared.0 <= MAX_SHARED,
            "shared",
            format!("no GPU has {shared} of shared memory per block"),
            "write at most 48 KiB, which every GPU supports; large GPUs support about 200 KiB",
        )?;
        require(
            !is_source || self.entry.is_none(),
            "entry",
            format!(
                "`entry` cannot be set, because daq compiles {file} and defines the entry itself"
            ),
            "remove `entry`; the function must be called on_frame",
        )?;
        if let Some(entry) = &self.entry {
            require(
                params::is_identifier(entry),
                "entry",
                format!("{entry:?} is not a valid kernel name"),
                "write the name that the kernel's source code passes to DAQ_ENTRY",
            )?;
        }
        require(
            is_source || self.options.is_empty(),
            "options",
            format!("`options` cannot be set, because {file} is already compiled"),
            "remove `options`, or set `file` to the .cu file",
        )?;
        if let Some(i) = self.options.iter().position(|option| is_ours(option)) {
            return Err(Problem::at(
                format!("options.{i}"),
                "the architecture cannot be set, because daq compiles for the GPU that runs the kernel",
            )
            .help("remove this option"));
        }
        params::check(&self.params)?;
        self.frame.check()
    }
}

impl KernelSpec for FileKernel {
    fn problems(&self) -> Vec<Problem> {
        self.check().err().into_iter().collect()
    }

    fn facts(&self) -> KernelFacts {
        KernelFacts {
            files: vec![NamedFile::new("file", &self.file, FileUse::Reads)],
            persistent: match self.code() {
                Some(Code::Source) => Ok(()),
                _ => Err(format!(
                    "{} is already compiled for dispatch \"launch\"; set `file` to the .cu file",
                    self.file
                )),
            },
            ..KernelFacts::default()
        }
    }

    fn check_files(&self, context: &CheckContext<'_>) -> CheckReport {
        check::check_files(self, context)
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        not_empty(input)?;
        self.frame.layout(input)
    }

    fn input_facts(&self, _input: &Layout) -> InputFacts {
        InputFacts {
            runs_on_cpu: false,
            runs_on_gpu: true,
            ..InputFacts::default()
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let Side::Cuda(ordinal) = context.side else {
            return Err(defect(format!(
                "{} is GPU code but was started on the CPU",
                self.file
            )));
        };
        let device = Device::open(ordinal)?;
        let entry = unit::Entry::of(context.dispatch);
        let image = self.image(&context.directory, device.attributes().capability, entry)?;
        Ok(match context.dispatch {
            Dispatch::Launch => Box::new(launch::FileCode::new(self, context, device, &image)?),
            Dispatch::Persistent => Box::new(persistent::PersistentKernel::new(
                self, context, device, &image,
            )?),
        })
    }
}
