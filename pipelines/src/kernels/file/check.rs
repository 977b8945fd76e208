//! Examines a kernel's code without a GPU: compiles it, and compares the parameters with `struct Params`.

use super::message::findings;
use super::params::{Member, in_ptx, refused};
use super::unit::{Entry, Unit};
use super::{Code, FileKernel};
use daq_core::check::{CheckContext, CheckReport, FileFindings};
use daq_core::config::Problem;
use daq_core::gpu::driver::{CompileError, Compiler, Target};
use std::path::Path;

/// Targets for which code is compiled if the GPU is unknown. Code that compiles only for newer targets is accepted.
const TARGETS: [Target; 3] = [Target::Ptx(8, 0), Target::Ptx(9, 0), Target::Ptx(10, 0)];

pub(super) fn check_files(keys: &FileKernel, context: &CheckContext<'_>) -> CheckReport {
    let mut found = CheckReport::default();
    // Another check reports a file that cannot be read.
    let Ok((path, bytes)) = keys.read(context.directory) else {
        return found;
    };
    let file = &keys.file;
    if keys.code() == Some(Code::Cubin) {
        let what = format!(
            "`params` and `entry`: {file} is machine code, which can be checked only by a GPU's driver"
        );
        found.unchecked.push(what);
        return found;
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let message = format!("byte {at} of {} is not valid UTF-8", path.display());
            found
                .problems
                .push(Problem::at("file", message).help("save the file in UTF-8"));
            return found;
        }
    };
    if keys.code() == Some(Code::Source) {
        let entry = Entry::of(context.dispatch);
        compile(keys, &keys.unit(&text, path.parent(), entry), &mut found);
    } else {
        check_entry(keys, &text, &mut found);
        check_params(keys, &text, &mut found);
    }
    found
}

/// Compiles `unit` and checks the parameters.
fn compile(keys: &FileKernel, unit: &Unit<'_>, found: &mut CheckReport) {
    let file = &keys.file;
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => {
            let what = format!("{file} was not compiled, and `params` were not checked: {error}");
            found.unchecked.push(what);
            return;
        }
    };
    let mut first = None;
    for target in TARGETS {
        match unit.compile(compiler, target) {
            Ok(ptx) => return check_params(keys, &String::from_utf8_lossy(&ptx), found),
            Err(error @ CompileError::Refused { .. }) => first = first.or(Some(error)),
            Err(error) => {
                first = first.or(Some(error));
                break;
            }
        }
    }
    match first {
        Some(CompileError::Refused { log }) => refuse(unit, &log, found),
        // Error 5 is NVRTC_ERROR_INVALID_OPTION.
        Some(CompileError::Failed { code: 5, log, .. }) if !log.contains("architecture") => {
            let log = log.trim_start_matches(':').trim();
            let message = format!("the compiler rejects an option: {log}");
            let problem = Problem::at("options", message);
            found.problems.push(
                problem.help("use only nvcc options that the run-time compiler (NVRTC) supports"),
            );
        }
        Some(error) => found
            .unchecked
            .push(format!("{file} was not compiled: {error}")),
        None => {}
    }
}

/// Adds the errors in the compiler's log to the findings.
fn refuse(unit: &Unit<'_>, log: &str, found: &mut CheckReport) {
    let findings = findings(unit, log);
    for (key, diagnostic) in findings.params {
        let own = format!("`params.{key}`: ");
        let message = diagnostic.message.strip_prefix(&own);
        found.problems.push(Problem {
            key: Some(format!("params.{key}")),
            message: message.unwrap_or(&diagnostic.message).to_owned(),
            help: (!diagnostic.help.is_empty()).then(|| diagnostic.help.join("; ")),
        });
    }
    if !findings.text.is_empty() {
        found.files.push(FileFindings {
            name: unit.name.to_owned(),
            text: unit.text.to_owned(),
            diagnostics: findings.text,
        });
    } else if found.problems.is_empty() {
        let message = format!("{} does not compile:\n{log}", unit.name);
        found.problems.push(Problem::at("file", message));
    }
}

/// Checks that compiled code contains the kernel to launch.
fn check_entry(keys: &FileKernel, ptx: &str, found: &mut CheckReport) {
    let name = keys.entry.as_deref().unwrap_or(super::launch::ENTRY);
    if !ptx.contains(&format!(".entry {name}(")) {
        let file = Path::new(&keys.file).display();
        let key = if keys.entry.is_some() {
            "entry"
        } else {
            "file"
        };
        let help = format!(
            "put DAQ_KERNEL(on_frame, Params) or DAQ_ENTRY({name}, on_frame) at the end of the source and recompile it"
        );
        found
            .problems
            .push(Problem::at(key, format!("{file} has no kernel `{name}`")).help(help));
    }
}

/// Checks the parameters against the members that the code describes.
fn check_params(keys: &FileKernel, ptx: &str, found: &mut CheckReport) {
    let file = &keys.file;
    for (key, value) in &keys.params {
        let name = format!("daq_param_{key}");
        let wrong =
            |message: String, help: &str| Problem::at(format!("params.{key}"), message).help(help);
        let Some(described) = in_ptx(ptx, &name) else {
            if ptx.contains(&name) {
                found.unchecked.push(format!(
                    "`params.{key}`: the value was not checked, because {file} describes this parameter in an unknown format"
                ));
            } else {
                let message = format!("{file} does not export `{key}` as a parameter");
                let help = format!(
                    "put DAQ_PARAM(Params, {key}) at the end of the source and recompile it"
                );
                found.problems.push(wrong(message, &help));
            }
            continue;
        };
        let Some(member) = Member::read(&described) else {
            let message =
                format!("member `{key}` of `struct Params` in {file} has an unsupported type");
            let help =
                "change the member to a number, a boolean or a one-dimensional array of them";
            found.problems.push(wrong(message, help));
            continue;
        };
        // The compiler has checked that the member is inside the struct.
        let mut image = vec![0; member.end()];
        if let Err(why) = member.set(&mut image, value) {
            let message = refused(file, key, value, &member, &why);
            let (message, help) = message.rsplit_once("; ").unwrap_or((&message, ""));
            let own = format!("`params.{key}` = {value}: ");
            let message = message.strip_prefix(&own).unwrap_or(message);
            found
                .problems
                .push(wrong(format!("{value}: {message}"), help));
        }
    }
}
