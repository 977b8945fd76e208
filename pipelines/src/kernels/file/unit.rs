//! The text that is compiled: the user's, and what goes with it.

use super::HEADER;
use daq_core::gpu::Dispatch;
use daq_core::gpu::driver::{CompileError, Compiler, Source, Target};
use std::fmt::Write;
use std::path::Path;

/// The name of the header.
pub(super) const HEADER_NAME: &str = "daq.cuh";
/// File name of the lines that daq adds, in messages of the compiler.
pub(super) const OURS: &str = "[daq]";
/// The same of the line for a parameter; its key follows.
pub(super) const PARAMETER: &str = "[params] ";

/// How the code is to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// For a burst at a time.
    Burst,
    /// Once, for all frames to come.
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

/// A file of the user's and how it is to be compiled.
#[derive(Clone, Debug)]
pub(super) struct Unit<'a> {
    /// The file's name, as the user wrote it.
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    /// Where the file lies and what it includes.
    pub(super) directory: Option<&'a Path>,
    /// Members of `struct Params` that are to be set.
    pub(super) params: Vec<&'a str>,
    pub(super) threads: u32,
    pub(super) options: &'a [String],
    pub(super) entry: Entry,
}

impl Unit<'_> {
    /// Everything in one text. Lines keep the numbers that they have in the user's file.
    pub(super) fn whole(&self) -> String {
        let name = self.name.replace('\\', "\\\\").replace('"', "\\\"");
        let mut text = format!(
            "#include \"{HEADER_NAME}\"\n#line 1 \"{name}\"\n{}\n#line 1 \"{OURS}\"\n",
            self.text
        );
        // `::Params` is the user's if there is one: names that a using-directive brings are looked for last.
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
