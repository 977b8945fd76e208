//! Parses logs of different compiler versions.

use super::super::message::{Message, compile_error, messages};
use super::super::unit::{Entry, Unit};

const TEXT: &str = "struct Params { float gain; };\n__device__ float f(float a) { return a; }\n\
                    __device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {\n    \
                    out.as<float>()[0] = p.gian * scale;\n}\n";

fn unit(params: Vec<&'static str>) -> Unit<'static> {
    Unit {
        entry: Entry::Burst,
        name: "my.cu",
        text: TEXT,
        directory: None,
        params,
        threads: 256,
        options: &[],
    }
}

#[test]
fn compiler_logs_with_and_without_source_lines_are_parsed() {
    let plain = "my.cu(4): error: class \"Params\" has no member \"gian\"\n\n\
                 my.cu(2): warning #177-D: function \"f\" was declared but never referenced\n\n\
                 Remark: The warnings can be suppressed with \"-diag-suppress <warning-number>\"\n\n\
                 1 error detected in the compilation of \"my.cu\".\n";
    let got = messages(plain);
    let first = Message {
        file: "my.cu".to_owned(),
        line: 4,
        column: None,
        is_error: true,
        text: "class \"Params\" has no member \"gian\"".to_owned(),
        also: Vec::new(),
    };
    assert_eq!(got[0], first);
    assert_eq!((got.len(), got[1].is_error, got[1].line), (2, false, 2));
    let drawn = "my.cu(4): error: class \"Params\" has no member \"gian\"\n      \
                 out.as<float>()[0] = p.gian * scale;\n                             ^\n\n";
    let column = Some("    out.as<float>()[0] = p.".len() + 1);
    assert_eq!(messages(drawn), [Message { column, ..first }]);
}

#[test]
fn compiler_message_keeps_secondary_locations() {
    let log = "daq.cuh(75): error: static assertion failed\n          \
               detected during instantiation of \"T f<T>() [with T=int]\" at line 4 of my.cu\n\n\
               [params] x(1): error: member \"Params::x\"\nmy.cu(1): here is inaccessible\n\n\
               my.cu(3): error: no instance of function \"f\" matches the argument list\n            \
               argument types are: (int, int)\nmy.cu(2): note #3327-D: candidate function \"f\" failed\n\n\
               At end of source: error: expected a \"}\"\nmy.cu(3): note #3196-D: to match this \"{\"\n";
    let got = messages(log);
    assert_eq!(got[0].also, [("my.cu".to_owned(), 4)]);
    assert_eq!(got[1].text, "member \"Params::x\" here is inaccessible");
    assert!(
        got[2].text.ends_with("; argument types are: (int, int)"),
        "{}",
        got[2].text
    );
    assert_eq!(
        (got[3].file.as_str(), &got[3].also[..]),
        ("", &[("my.cu".to_owned(), 3)][..])
    );
    let shown = compile_error(&unit(vec!["x"]), log);
    assert!(
        shown.contains("static assertion failed (daq.cuh:75)"),
        "{shown}"
    );
    assert!(
        shown.contains("my.cu:4:5") && shown.contains("used here"),
        "{shown}"
    );
    assert!(
        shown.contains("my.cu:3:") && shown.contains("this is not closed"),
        "{shown}"
    );
}

#[test]
fn compile_errors_are_shown_in_user_source() {
    let log = "my.cu(4): error: class \"Params\" has no member \"gian\"\n\n\
               my.cu(4): error: identifier \"scale\" is undefined\n\n\
               [daq](4): error: whatever follows from that\n\n3 errors detected in the compilation of \"my.cu\".\n";
    assert_eq!(
        compile_error(&unit(Vec::new()), log),
        "\
my.cu has 2 errors

error: class \"Params\" has no member \"gian\"
 --> my.cu:4:28
  |
4 |     out.as<float>()[0] = p.gian * scale;
  |                            ^^^^

error: identifier \"scale\" is undefined
 --> my.cu:4:35
  |
4 |     out.as<float>()[0] = p.gian * scale;
  |                                   ^^^^^"
    );
}

#[test]
fn parameter_without_struct_member_is_explained() {
    let log = "[params] gian(1): error: class \"Params\" has no member \"gian\"\n\n\
               [params] gian(1): error: no instance of function template \"daq::detail::member\" matches\n";
    let shown = compile_error(&unit(vec!["gian"]), log);
    assert_eq!(
        shown,
        "\
my.cu has an error

error: `params.gian`: `struct Params` in my.cu has no member `gian`
 |
 = help: did you mean `gain`?"
    );
}

#[test]
fn compiler_log_of_unknown_format_is_shown_unchanged() {
    let shown = compile_error(&unit(Vec::new()), "the machine is out of paper");
    assert_eq!(
        shown,
        "my.cu does not compile:\nthe machine is out of paper"
    );
}

#[test]
fn missing_headers_of_cuda_name_their_packages() {
    for (header, package) in [
        ("cuda_fp16.h", "nvidia-cuda-runtime-cu12 for CUDA 12"),
        ("cuda/std/complex", "nvidia-cuda-cccl-cu12 for CUDA 12"),
        ("own.h", "directory of the file"),
    ] {
        let log = format!("my.cu(1): catastrophic error: cannot open source file \"{header}\"\n");
        let shown = compile_error(&unit(Vec::new()), &log);
        assert!(shown.contains(package), "{shown}");
    }
}
