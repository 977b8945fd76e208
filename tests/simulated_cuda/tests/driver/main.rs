//! Tests of the simulated driver through the bindings of `cudarc`.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod copies;
mod faults;
mod machine;
mod memory;
mod modules;
mod peers;
mod persistent;
mod streams;
mod sys;

use daq_testkit::{Simulated, own_process};
use serde_json::Value;
use std::process::Output;

/// Runs a body in a process of its own with the simulated machine of the given options, and the context of the first
/// device. The process must succeed, and the driver's report must contain the given values.
macro_rules! passes {
    ($options:expr, $body:expr $(, $report:tt)?) => {
        if let Some(ended) = $crate::run(daq_testkit::this_test!(), "", $options, || {
            $crate::sys::context(0);
            $body();
        }) {
            assert!(ended.output.status.success(), "{}", ended.stderr());
            $($crate::assert_holds(&ended.report, &serde_json::json!($report));)?
        }
    };
}
pub(crate) use passes;

/// A process that has ended, and the report of its driver.
struct Ended {
    output: Output,
    report: Value,
}

impl Ended {
    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

/// Runs the body of the test `name` in a separate process with the simulated machine of `options`. Returns `None` in
/// that process itself.
fn run(name: &str, case: &str, options: &str, body: impl FnOnce()) -> Option<Ended> {
    let machine = Simulated::new(options);
    let prepare = |command: &mut std::process::Command| {
        machine.prepare(command);
    };
    let output = own_process(name, case, prepare, body)?;
    let report = machine.report();
    Some(Ended { output, report })
}

/// Panics unless `report` contains all values of `expected`.
fn assert_holds(report: &Value, expected: &Value) {
    match expected {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                assert_holds(&report[key], value);
            }
        }
        _ => assert_eq!(report, expected),
    }
}
