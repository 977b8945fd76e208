//! Builds the text to compile from the user's file and the lines that daq adds.

use super::HEADER;
use daq_core::gpu::Dispatch;
use daq_core::gpu::driver::{CompileError, Compiler, Source, Target};
use std::fmt::Write;
use std::path::Path;

/// File name of the header.
pub(super) const HEADER_NAME: &str = "daq.cuh";
/// File name of the lines that daq adds, as shown in compiler messages.
pub(super) const OURS: &str = "[daq]";
/// Prefix of the file name that compiler messages show for a line that sets a parameter. The parameter's key follows
/// the prefix.
pub(super) const PARAMETER: &str = "[params] ";

/// How the code is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Launched once per burst.
    Burst,
    /// Launched once for all frames.
    Persistent,
}

impl Entry {
    pub(super) const fn of(dispatch: Dispatch) -> Self {
        match dispatch {
            Dispatch::Launch => Self::Burst,
            Dispatch::Persistent => Self::Persistent,
        }
    }
}

/// A user's file with the settings for its compilation.
#[derive(Clone, Debug)]
pub(super) struct Unit<'a> {
    /// Name of the file as the user wrote it.
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    /// Directory of the user's file. Included files are also searched in this directory.
    pub(super) directory: Option<&'a Path>,
    /// Members of `struct Params` to set.
    pub(super) params: Vec<&'a str>,
    pub(super) threads: u32,
    pub(super) options: &'a [String],
    pub(super) entry: Entry,
}

impl Unit<'_> {
    /// Returns the complete text. The lines of the user's file keep their line numbers.
    pub(super) fn whole(&self) -> String {
        let name = self.name.replace('\\', "\\\\").replace('"', "\\\"");
        let mut text = format!(
            "#include \"{HEADER_NAME}\"\n#line 1 \"{name}\"\n{}\n#line 1 \"{OURS}\"\n",
            self.text
        );
        // `::Params` is the user's struct if the user defines one, because names from a using-directive have lower
        // priority.
        text += "namespace daq_otherwise { using Params = daq::NoParams; }\n\
                 using namespace daq_otherwise;\n\
                 DAQ_DETAIL_PARAMS(::Params)\n";
        for key in &self.params {
            let _ = write!(
                text,
                "#line 1 \"{PARAMETER}{key}\"\nDAQ_DETAIL_PARAM(::Params, {key})\n"
            );
        }
        let entry = match self.entry {
            Entry::Burst => "DAQ_DETAIL_ENTRY(daq_burst, ::on_frame)",
            Entry::Persistent => "DAQ_DETAIL_PERSISTENT(daq_persistent, ::on_frame)",
        };
        let _ = write!(text, "#line 4 \"{OURS}\"\n{entry}\n");
        text
    }

    pub(super) fn compile(
        &self,
        compiler: Compiler,
        target: Target,
    ) -> Result<Vec<u8>, CompileError> {
        let whole = self.whole();
        let source = Source {
            name: self.name,
            text: &whole,
            headers: &[(HEADER_NAME, HEADER)],
        };
        let mut options = vec![
            "-DDAQ_UNIT".to_owned(),
            format!("-DDAQ_THREADS={}", self.threads),
        ];
        let is_standard = |option: &String| option.trim_start_matches('-').starts_with("std");
        if !self.options.iter().any(is_standard) {
            options.push("--std=c++17".to_owned());
        }
        if let Some(directory) = self.directory {
            let directory = match directory.to_str() {
                Some("") => ".",
                Some(directory) => directory,
                None => "",
            };
            if !directory.is_empty() {
                options.push(format!("--include-path={directory}"));
            }
        }
        options.extend_from_slice(self.options);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        compiler.compile(&source, target, &options)
    }
}
