//! Compilation of CUDA C++ to device code with NVIDIA's runtime compiler, which is loaded at run time.

use crate::sys::nvrtc::{self, Code};
use std::ffi::{CString, OsString};
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

/// The environment variable with the path of the library, if the dynamic linker does not find it.
const VARIABLE: &str = "DAQ_NVRTC";

/// The source code to compile.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The name in messages, usually the file name.
    pub name: &'a str,
    /// The text.
    pub text: &'a str,
    /// The headers that the source may include, as names and texts. No files are read.
    pub headers: &'a [(&'a str, &'a str)],
}

/// The target of a compilation. Compute capabilities are `(major, minor)`, such as `(9, 0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Machine code for this compute capability.
    Cubin(i32, i32),
    /// PTX for this compute capability and all newer ones.
    Ptx(i32, i32),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cubin(major, minor) => write!(f, "sm_{major}{minor}"),
            Self::Ptx(major, minor) => write!(f, "compute_{major}{minor}"),
        }
    }
}

/// The error of a failed compilation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The compiler was not found.
    #[error(
        "cannot load libnvrtc{why}; install it (Debian: nvidia-cuda-toolkit; PyPI: nvidia-cuda-nvrtc) and set {VARIABLE} to its path if the dynamic linker does not find it"
    )]
    NoCompiler {
        /// The linker's message as a clause; may be empty.
        why: String,
    },
    /// The source has errors.
    #[error("{log}")]
    Refused {
        /// The compiler's messages, in the form `FILE(LINE): error: …`.
        log: String,
    },
    /// The compiler failed otherwise.
    #[error("libnvrtc failed with error {code} while {what}{log}")]
    Failed {
        /// The step that failed.
        what: &'static str,
        /// The compiler's error code.
        code: u32,
        /// The compiler's log, on new lines; may be empty.
        log: String,
    },
}

/// The compiler, if it is installed.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    version: (i32, i32),
}

impl Compiler {
    /// Finds the compiler. The result is stored until the process ends.
    pub fn find() -> Result<Self, CompileError> {
        Self::find_at(None)
    }

    /// Finds the compiler as [`find`](Self::find) does. If the environment variable is not set, uses the library's file
    /// at `path`.
    pub fn find_at(path: Option<&Path>) -> Result<Self, CompileError> {
        static FOUND: OnceLock<Result<Compiler, CompileError>> = OnceLock::new();
        let open = || Self::open(std::env::var_os(VARIABLE).or(path.map(Into::into)));
        FOUND.get_or_init(open).clone()
    }

    fn open(path: Option<OsString>) -> Result<Self, CompileError> {
        if let Some(path) = path {
            let name = path.display().to_string();
            if Path::new(&path).is_relative() {
                return Err(CompileError::NoCompiler {
                    why: format!(
                        "; {VARIABLE}={name} is a relative path, so the library depends on the working \
                         directory; write an absolute path"
                    ),
                });
            }
            preload_built_in(path.as_ref());
            let path = CString::new(path.into_encoded_bytes()).unwrap_or_default();
            nvrtc::open(&path).map_err(|output| CompileError::NoCompiler {
                why: format!("; {name} was tried: {output}"),
            })?;
        }
        if !nvrtc::is_present() {
            return Err(CompileError::NoCompiler { why: String::new() });
        }
        let version = nvrtc::version().map_err(failed("querying the compiler's version"))?;
        Ok(Self { version })
    }

    /// Returns the major and minor version.
    pub const fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles `source`; `options` are nvcc options that the runtime compiler supports.
    pub fn compile(
        &self,
        source: &Source<'_>,
        target: Target,
        options: &[&str],
    ) -> Result<Vec<u8>, CompileError> {
        let text = |text: &str| {
            CString::new(text).map_err(|error| CompileError::Refused {
                log: format!(
                    "{}: byte {} is NUL, which source code cannot contain",
                    source.name,
                    error.nul_position()
                ),
            })
        };
        let mut headers = Vec::with_capacity(source.headers.len());
        for (name, content) in source.headers {
            headers.push((text(name)?, text(content)?));
        }
        let mut arguments = vec![text(&format!("--gpu-architecture={target}"))?];
        for option in options {
            arguments.push(text(option)?);
        }
        let program = Program(
            nvrtc::create(&text(source.text)?, &text(source.name)?, &headers)
                .map_err(failed("reading the source"))?,
        );
        // SAFETY: the program is alive until the end of this function.
        let compiled = unsafe { nvrtc::compile(program.0, &arguments) };
        if let Err(code) = compiled {
            // SAFETY: the program is alive until the end of this function.
            let log = unsafe { nvrtc::log(program.0) }.unwrap_or_default();
            let log = String::from_utf8_lossy(&log)
                .trim_end_matches(['\0', '\n'])
                .to_owned();
            return Err(match code {
                // 6 is NVRTC_ERROR_COMPILATION.
                Code(6) => CompileError::Refused { log },
                Code(code) => CompileError::Failed {
                    what: "compiling",
                    code,
                    log: if log.is_empty() {
                        log
                    } else {
                        format!(":\n{log}")
                    },
                },
            });
        }
        match target {
            // SAFETY: the program is alive and was compiled for this kind of target.
            Target::Cubin(..) => unsafe { nvrtc::cubin(program.0) },
            // SAFETY: the program is alive and was compiled for this kind of target.
            Target::Ptx(..) => unsafe { nvrtc::ptx(program.0) },
        }
        .map_err(failed("returning the compiled code"))
    }
}

/// Opens the library of built-in code in the directory of the compiler at `path`. Newer compilers search for this
/// library only by name, so they find it only in the dynamic linker's directories.
fn preload_built_in(path: &Path) {
    let entries = path.parent().and_then(|parent| parent.read_dir().ok());
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b"libnvrtc-builtins.so")
            && let Ok(path) = CString::new(entry.path().into_os_string().into_encoded_bytes())
        {
            // If this fails, the compiler reports what is missing.
            let _ = nvrtc::preload(&path);
        }
    }
}

fn failed(what: &'static str) -> impl Fn(Code) -> CompileError {
    move |Code(code)| CompileError::Failed {
        what,
        code,
        log: String::new(),
    }
}

struct Program(nvrtc::Program);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created by `nvrtc::create` and is not used anywhere else.
        let _ = unsafe { nvrtc::destroy(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library that every process has loaded and that is not a compiler.
    const OTHER: &str = "libc.so.6";

    #[test]
    fn library_that_is_not_a_compiler_is_named() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut paths = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        let other = paths.find(|path| path.ends_with(OTHER));
        for (path, why) in [
            (other.unwrap(), "it lacks nvrtcVersion"),
            ("/nowhere/libnvrtc.so.12", "No such file"),
        ] {
            let error = Compiler::open(Some(path.into())).unwrap_err().to_string();
            assert!(error.contains(&format!("; {path} was tried: ")), "{error}");
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn compiler_with_relative_path_is_rejected() {
        for path in ["libnvrtc.so.12", "lib/libnvrtc.so", "./libnvrtc.so", ""] {
            let error = Compiler::open(Some(path.into())).unwrap_err().to_string();
            assert!(
                error.contains("is a relative path") && error.contains("absolute"),
                "{error}"
            );
        }
    }
}
