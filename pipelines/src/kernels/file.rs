//! `file`: a kernel of the user's own, in CUDA C++, PTX or machine code.
//!
//! A section `[kernel.NAME]` with `file` in place of `use`. The contents of such a file are described by the header
//! [`HEADER`], which `daq reference kernel-header` prints.
//!
//! | file | noun |
//! |---|---|
//! | `examine` | what is wrong with the code, found without a GPU |
//! | `frame` | what an output frame means |
//! | `params` | values from the configuration, put into the bytes of the user's `struct Params` |
//! | `unit` | the text that is compiled: the user's, and what goes with it |
//! | `message` | what the compiler says, shown with the user's lines |
//! | `code` | the user's code on its device |
//! | `record` | the metadata of a frame that it receives |
//! | `launch` | the kernel that is launched for each burst |
//! | `persistent` | the persistent kernel |

mod code;
mod examine;
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

use super::{Keys, not_empty};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::examine::{Examination, Examined, FileUse, NamedFile};
use daq_core::gpu::Dispatch;
use daq_core::gpu::driver::{CompileError, Compiler, Device, Target};
use daq_core::kernel::{Kernel, KernelContext, KernelError, KernelSpec, Side};
use daq_core::layout::Layout;
use daq_core::plan::FILE_KERNEL;
use daq_core::units::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The header that a kernel of the user's own is compiled against.
pub const HEADER: &str = include_str!("daq.cuh");

/// Threads of a block that a device can have at most.
const MAX_THREADS: u32 = 1024;
/// Threads that run in step.
const WARP: u32 = 32;
/// Blocks of a frame at most.
const MAX_BLOCKS: u32 = 65_535;
/// Teams of a kernel that stays at most.
const MAX_TEAMS: u32 = 4096;
/// Input bytes per thread, if the number of blocks is not configured.
const BYTES_A_THREAD: usize = 64;
/// Maximum number of blocks per frame, if the number is not configured.
const USUAL_BLOCKS: usize = 256;
/// Shared memory of a block that no device has.
const MAX_SHARED: u64 = 1 << 20;

/// What `daq` knows of kernels in files.
pub const ENTRY: KernelEntry = KernelEntry {
    name: FILE_KERNEL,
    summary: "Runs CUDA code of your own on a GPU, from a .cu, .ptx or .cubin file",
    example: "\
[kernel.NAME]
# The code: `daq reference kernel-header` prints the header daq.cuh, which says what is in it.
file = \"my.cu\"
input = \"INPUT\"
output = \"OUTPUT\"
# Members of the code's `struct Params`; the others keep their defaults.
# params = { gain = 2.5, taps = [1, 2, 1, 0] }
# What an output frame means; what is left out is as in the input.
# frame = { type = \"float32\" }
# Frames that a persistent kernel (dispatch = \"persistent\") works on at a time.
# teams = 1
# Blocks for each frame; by the frame's size if left out.
# blocks = 64
# Threads of a block.
# threads = 256
# Dynamic shared memory of a block.
# shared = \"0 B\"
# Options for the compiler of .cu files.
# options = [\"--use_fast_math\"]
",
    schema: || schemars::schema_for!(FileKernel),
    parse: FileKernel::parse,
};

/// The keys of a kernel in a file.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileKernel {
    /// The code: CUDA C++ (`.cu`), which is compiled at the start, PTX (`.ptx`) or machine code (`.cubin`).
    /// Relative paths start from the working directory.
    pub file: String,
    /// Values for members of the code's `struct Params`: numbers, booleans and arrays of them. Members that are
    /// not named here keep the defaults that the code gives them.
    #[serde(default)]
    pub params: BTreeMap<String, Value>,
    /// What an output frame means; what is left out is as in the input.
    #[serde(default)]
    pub frame: FrameKeys,
    /// Blocks for each frame, 1 to 65535. Default: as many as give each thread 64 bytes of input, at most 256.
    pub blocks: Option<u32>,
    /// With `dispatch = "persistent"`: frames that are worked on at a time, 1 to 4096. Frames are dealt to teams of
    /// `blocks` blocks in turn. Default: 1.
    pub teams: Option<u32>,
    /// Threads of a block, a multiple of 32 up to 1024.
    #[serde(default = "usual_threads")]
    pub threads: u32,
    /// Dynamic shared memory of a block, such as `"16 KiB"`; none if not given.
    pub shared: Option<ByteSize>,
    /// The kernel's name in a `.ptx` or `.cubin` file that has several; the one that `DAQ_KERNEL` makes if not given.
    pub entry: Option<String>,
    /// Options for the compiler of `.cu` files, such as `"--use_fast_math"` or `"-I/usr/local/cuda/include"`.
    #[serde(default)]
    pub options: Vec<String>,
}

const fn usual_threads() -> u32 {
    256
}

/// What is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Source,
    Ptx,
    Cubin,
}

impl FileKernel {
    /// A kernel in `file` with the commonest choices.
    pub fn new(file: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            params: BTreeMap::new(),
            frame: FrameKeys::default(),
            blocks: None,
            teams: None,
            threads: usual_threads(),
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

    /// Blocks for a frame of `input`.
    fn blocks(&self, input: &Layout) -> u32 {
        self.blocks.unwrap_or_else(|| {
            let block = self.threads as usize * BYTES_A_THREAD;
            let blocks = input.frame_bytes().div_ceil(block).clamp(1, USUAL_BLOCKS);
            u32::try_from(blocks).unwrap_or(MAX_BLOCKS)
        })
    }

    fn read(&self, directory: &Path) -> Result<(PathBuf, Vec<u8>), KernelError> {
        let path = directory.join(&self.file);
        let bytes = daq_core::file::read(&path).map_err(|error| {
            KernelError::Refused(format!(
                "`file`: cannot read {}: {error}; give the path from {} on, or an absolute one",
                path.display(),
                std::path::absolute(directory).map_or_else(
                    |_| "the working directory".to_owned(),
                    |from| from.display().to_string()
                )
            ))
        })?;
        Ok((path, bytes))
    }

    /// Device code for `capability`.
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
                "`file`: byte {at} of {} is not UTF-8 text; write the source in UTF-8",
                path.display()
            ))
        })?;
        let compiler = Compiler::find().map_err(|error| no_compiler(&self.file, &error))?;
        let target = Target::Cubin(capability.0, capability.1);
        self.compile(compiler, &text, path.parent(), target, entry)
    }

    /// The text of the user's file, which lies in `directory`, with what goes with it.
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

    /// Compiles the text of the user's file, which lies in `directory`.
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
                "{} cannot be compiled for {target}: {error}; compile it with nvcc to a .cubin or .ptx file, or look \
                 at `options` and for a compiler as new as the GPU (this one is libnvrtc {}.{})",
                self.file,
                compiler.version().0,
                compiler.version().1
            )),
        })
    }
}

fn no_compiler(file: &str, error: &CompileError) -> KernelError {
    KernelError::Unavailable(format!(
        "{file} cannot be compiled: {error}; or compile it elsewhere with nvcc and name the .cubin or .ptx file"
    ))
}

/// Whether a compiler's option is one that daq gives itself.
fn is_ours(option: &str) -> bool {
    ["--gpu-architecture", "-arch"]
        .iter()
        .any(|ours| option.starts_with(ours))
}

impl Keys for FileKernel {
    fn check(&self) -> Result<(), Problem> {
        let Some(code) = self.code() else {
            return Err(Problem::at(
                "file",
                format!("{:?} is no file with device code", self.file),
            )
            .help("its name ends in .cu (CUDA C++), .ptx or .cubin"));
        };
        if !(1..=MAX_THREADS).contains(&self.threads) || !self.threads.is_multiple_of(WARP) {
            return Err(
                Problem::at("threads", format!("a block of {} threads", self.threads))
                    .help("write a multiple of 32 from 32 to 1024; 256 suits most"),
            );
        }
        if let Some(blocks) = self.blocks
            && !(1..=MAX_BLOCKS).contains(&blocks)
        {
            return Err(
                Problem::at("blocks", format!("{blocks} blocks for each frame"))
                    .help(format!("1 to {MAX_BLOCKS} are possible")),
            );
        }
        if let Some(teams) = self.teams
            && !(1..=MAX_TEAMS).contains(&teams)
        {
            return Err(
                Problem::at("teams", format!("{teams} frames worked on at a time"))
                    .help(format!("1 to {MAX_TEAMS} are possible")),
            );
        }
        if let Some(shared) = self.shared
            && shared.0 > MAX_SHARED
        {
            return Err(Problem::at(
                "shared",
                format!("no GPU has {shared} of shared memory for a block"),
            )
            .help("48 KiB are always there, about 200 KiB on large GPUs"));
        }
        if code == Code::Source && self.entry.is_some() {
            return Err(Problem::at(
                "entry",
                format!("{} is compiled by daq, which makes the entry", self.file),
            )
            .help("leave `entry` out: the function is called on_frame"));
        }
        if let Some(entry) = &self.entry
            && !params::is_identifier(entry)
        {
            return Err(
                Problem::at("entry", format!("{entry:?} is no name of a kernel"))
                    .help("write the name that DAQ_ENTRY was given"),
            );
        }
        if code != Code::Source && !self.options.is_empty() {
            return Err(
                Problem::at("options", format!("{} is compiled already", self.file))
                    .help("leave `options` out, or name the .cu file"),
            );
        }
        if let Some(i) = self.options.iter().position(|option| is_ours(option)) {
            return Err(Problem::at(
                format!("options.{i}"),
                "the architecture is that of the GPU that the kernel runs on",
            )
            .help("leave this option out"));
        }
        params::check(&self.params)?;
        self.frame.check()
    }
}

impl KernelSpec for FileKernel {
    fn files(&self) -> Vec<NamedFile> {
        vec![NamedFile::new("file", &self.file, FileUse::Reads)]
    }

    fn examine(&self, examination: &Examination<'_>) -> Examined {
        examine::examine(self, examination)
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        not_empty(input)?;
        self.frame.layout(input)
    }

    fn has(&self, _input: &Layout, side: Side) -> bool {
        matches!(side, Side::Cuda(_))
    }

    fn supports_persistent(&self) -> Result<(), String> {
        match self.code() {
            Some(Code::Source) => Ok(()),
            _ => Err(format!(
                "{} is compiled already, for launches; name the .cu file",
                self.file
            )),
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let Side::Cuda(ordinal) = context.side else {
            return Err(KernelError::Defect(format!(
                "{} is code for a GPU and was to run on the CPU; this is a defect in daq",
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
