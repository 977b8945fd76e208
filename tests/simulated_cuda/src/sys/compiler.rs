//! The run-time compiler. It generates code for a text without parsing the text.
//!
//! The functions' names and parameters are those of NVIDIA's `nvrtc.h`.

use super::table::Table;
use super::{In, Out};
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex};

/// An `nvrtcResult`.
type Answer = i32;

const SUCCESS: Answer = 0;
const INVALID_INPUT: Answer = 3;
const INVALID_PROGRAM: Answer = 4;
const COMPILATION: Answer = 6;

/// Entries that daq adds to a text that defines `on_frame`.
const ENTRIES: [&str; 2] = ["daq_burst", "daq_persistent"];

/// A program with its text and the results of its compilation.
#[derive(Debug)]
struct Program {
    name: String,
    text: String,
    headers: String,
    code: Mutex<String>,
    log: Mutex<String>,
}

static PROGRAMS: Table<Program> = Table::new();

impl Program {
    /// Returns PTX with the entries that occur in the text, and with the version of the header that the text was
    /// compiled with.
    fn compile(&self) -> Result<String, String> {
        if !self.text.contains("on_frame(") {
            return Err(format!(
                "{}(1): error: identifier \"on_frame\" is undefined\n",
                self.name
            ));
        }
        let version: String = self
            .headers
            .split_once("daq_header = ")
            .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect())
            .unwrap_or_default();
        let mut code = format!(
            ".version 8.0\n.target sm_70\n.address_size 64\n.const .align 4 .u32 daq_header = {version};\n"
        );
        for entry in ENTRIES.iter().filter(|entry| self.text.contains(**entry)) {
            code += &format!(".visible .entry {entry}()\n{{\n    ret;\n}}\n");
        }
        Ok(code)
    }
}

/// Returns a text with a terminating NUL.
fn give(text: &str, out: &Out<c_char>) -> Answer {
    let room = i32::try_from(text.len() + 1).unwrap_or(0);
    out.text(text, room).map_or(INVALID_INPUT, |()| SUCCESS)
}

fn with(program: usize, then: impl FnOnce(&Program) -> Answer) -> Answer {
    PROGRAMS
        .get(program)
        .map_or(INVALID_PROGRAM, |program| then(&program))
}

fn size(text: &Mutex<String>, bytes: &Out<usize>) -> Answer {
    bytes
        .set(super::lock(text).len() + 1)
        .map_or(INVALID_INPUT, |()| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcVersion(major: Out<c_int>, minor: Out<c_int>) -> Answer {
    (|| {
        major.set(12)?;
        minor.set(0)
    })()
    .map_or(INVALID_INPUT, |()| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcCreateProgram(
    program: Out<usize>,
    text: In<c_char>,
    name: In<c_char>,
    count: c_int,
    headers: In<In<c_char>>,
    _names: usize,
) -> Answer {
    let read = || {
        let mut all = String::new();
        for n in 0..usize::try_from(count).unwrap_or(0) {
            all += &headers.at(n)?.text()?;
        }
        program.set(PROGRAMS.insert(Arc::new(Program {
            name: name.text()?,
            text: text.text()?,
            headers: all,
            code: Mutex::default(),
            log: Mutex::default(),
        })))
    };
    read().map_or(INVALID_INPUT, |()| SUCCESS)
}

/// Options have no effect.
#[unsafe(no_mangle)]
extern "C" fn nvrtcCompileProgram(program: usize, _count: c_int, _options: usize) -> Answer {
    with(program, |program| match program.compile() {
        Ok(code) => {
            *super::lock(&program.code) = code;
            SUCCESS
        }
        Err(log) => {
            *super::lock(&program.log) = log;
            COMPILATION
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcDestroyProgram(program: In<usize>) -> Answer {
    program
        .get()
        .and_then(|program| PROGRAMS.remove(program))
        .map_or(INVALID_PROGRAM, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLogSize(program: usize, bytes: Out<usize>) -> Answer {
    with(program, |program| size(&program.log, &bytes))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLog(program: usize, text: Out<c_char>) -> Answer {
    with(program, |program| give(&super::lock(&program.log), &text))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetPTXSize(program: usize, bytes: Out<usize>) -> Answer {
    with(program, |program| size(&program.code, &bytes))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetPTX(program: usize, text: Out<c_char>) -> Answer {
    with(program, |program| give(&super::lock(&program.code), &text))
}

/// Returns the size of the PTX, because the simulated driver accepts PTX in place of machine code.
#[unsafe(no_mangle)]
extern "C" fn nvrtcGetCUBINSize(program: usize, bytes: Out<usize>) -> Answer {
    nvrtcGetPTXSize(program, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetCUBIN(program: usize, text: Out<c_char>) -> Answer {
    nvrtcGetPTX(program, text)
}
