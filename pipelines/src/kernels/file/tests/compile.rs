//! Compiles sources with NVIDIA's compiler. If the compiler is not available, prints the reason and skips the tests.

use super::super::params::{Kind, Member};
use super::super::unit::Entry;
use super::*;

const CLIP: &str = include_str!("../../../../../configs/kernels/clip.cu");
const TRIGGER: &str = include_str!("../../../../../configs/kernels/trigger.cu");
const TOUCH: &str = include_str!("../../../../bench/src/touch.cu");
const KERNEL: &str = "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {\n    \
                      if (in.index() == 0) out.as<float>()[0] = p.gain + in.sequence();\n}\n";
const PARAMS: &str = "struct Params { float gain = 2; };\n";

/// Returns the compiler of the system, the compiler that an environment variable names, or the compiler in the tests'
/// Python environment.
fn compiler() -> Option<Compiler> {
    let python = std::env::var_os("DAQ_TEST_PYTHON").map(PathBuf::from);
    let found = python.as_deref().and_then(in_python);
    match Compiler::find_at(found.as_deref()) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Returns the compiler library in the packages of the Python environment of `python`.
fn in_python(python: &Path) -> Option<PathBuf> {
    let library = python.parent()?.parent()?.join("lib");
    let versions = std::fs::read_dir(library).ok()?.flatten();
    let packages = versions.map(|version| version.path().join("site-packages/nvidia"));
    packages
        .flat_map(|packages| {
            ["cuda_nvrtc/lib/libnvrtc.so.12", "cu13/lib/libnvrtc.so.13"]
                .map(|file| packages.join(file))
        })
        .find(|file| file.exists())
}

fn keys(params: &[(&str, Value)]) -> FileKernel {
    let params = params
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone()));
    FileKernel {
        params: params.collect(),
        ..FileKernel::new("my.cu")
    }
}

fn compile(keys: &FileKernel, compiler: Compiler, text: &str) -> Result<String, String> {
    keys.compile(compiler, text, None, Target::Ptx(8, 0), Entry::Burst)
        .map(|ptx| String::from_utf8(ptx).unwrap())
        .map_err(|error| error.to_string())
}

/// Returns the first `length` bytes of a variable in PTX. PTX omits trailing bytes that are zero.
fn variable(ptx: &str, name: &str, length: usize) -> Vec<u8> {
    let (_, rest) = ptx.split_once(&format!(".b8 {name}[")).unwrap();
    let line = rest.lines().next().unwrap();
    let (size, values) = line.split_once(']').unwrap();
    assert_eq!(size.parse(), Ok(length), "{line}");
    let values = values.trim_matches([' ', '=', '{', '}', ';']);
    let mut bytes: Vec<u8> = values
        .split(',')
        .filter_map(|byte| byte.trim().parse().ok())
        .collect();
    bytes.resize(length, 0);
    bytes
}

#[test]
fn example_kernel_compiles_to_machine_code_and_ptx() {
    let Some(compiler) = compiler() else { return };
    let keys = keys(&[
        ("limit", Value::Float(0.25)),
        ("silence", Value::Array(vec![Value::Integer(0); 2])),
    ]);
    let cubin = keys.compile(compiler, CLIP, None, Target::Cubin(9, 0), Entry::Burst);
    assert!(cubin.unwrap().starts_with(b"\x7fELF"));
    let ptx = compile(&keys, compiler, CLIP).unwrap();
    assert!(ptx.contains(".visible .entry daq_burst("), "{ptx}");
    assert!(
        ptx.contains(".maxntid"),
        "the number of threads per block must be declared"
    );
    assert!(
        !ptx.contains(".global .align 4"),
        "the header must not add definitions to the compiled file"
    );
    // The expected offset and type of each member, as the compiler reports them, and the default values.
    let member =
        |name: &str| Member::read(&variable(&ptx, &format!("daq_param_{name}"), 24)).unwrap();
    assert_eq!(
        (member("limit").offset, member("limit").to_string().as_str()),
        (4, "float")
    );
    let silence = member("silence");
    assert_eq!(
        (silence.offset, silence.kind, silence.count),
        (16, Kind::Float, Some(2))
    );
    let mut image = variable(&ptx, "daq_params", 24);
    assert_eq!(&image[..8], [0, 0, 128, 63, 0, 0, 0, 63]);
    member("limit")
        .set(&mut image, &Value::Float(0.25))
        .unwrap();
    assert_eq!(&image[..8], [0, 0, 128, 63, 0, 0, 128, 62]);
}

#[test]
fn shipped_kernels_compile_as_persistent() {
    let Some(compiler) = compiler() else { return };
    for (name, text) in [("clip", CLIP), ("trigger", TRIGGER), ("touch", TOUCH)] {
        let target = Target::Ptx(7, 0);
        let ptx = keys(&[])
            .compile(compiler, text, None, target, Entry::Persistent)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let ptx = String::from_utf8(ptx).unwrap();
        let entry = ".visible .entry daq_persistent(";
        assert_eq!(ptx.matches(entry).count(), 1, "{name}: {ptx}");
        // The doorbell must be polled and credits must be returned with the memory order that the host requires. The
        // payload must never be read through the non-coherent cache.
        let bell = "ld.acquire.sys.global.u64";
        assert!(ptx.contains(bell), "{name}: {ptx}");
        let credit = "fence.acq_rel.gpu;\n\tst.relaxed.sys.global.u64";
        assert!(ptx.contains(credit), "{name}: {ptx}");
        assert!(!ptx.contains(".nc."), "{name}: {ptx}");
    }
}

#[test]
fn trigger_kernel_compiles_with_all_parameters() {
    let Some(compiler) = compiler() else { return };
    let names = ["threshold", "coincidence", "window", "veto", "veto_window"];
    let keys = keys(&names.map(|name| (name, Value::Integer(1))));
    let cubin = keys.compile(compiler, TRIGGER, None, Target::Cubin(9, 0), Entry::Burst);
    assert!(cubin.unwrap().starts_with(b"\x7fELF"));
    let ptx = compile(&keys, compiler, TRIGGER).unwrap();
    let members = names.map(|name| {
        let message = variable(&ptx, &format!("daq_param_{name}"), 24);
        Member::read(&message).unwrap().to_string()
    });
    assert_eq!(members, ["int", "int", "int", "unsigned int", "int"]);
    assert!(
        !ptx.contains(".f32") && !ptx.contains(".f64"),
        "a decision consists of integers"
    );
}

#[test]
fn generated_types_match_scalar_types() {
    let Some(compiler) = compiler() else { return };
    let types = [
        ("char", "signed char"),
        ("signed char", "signed char"),
        ("unsigned char", "unsigned char"),
        ("short", "short"),
        ("unsigned short", "unsigned short"),
        ("int", "int"),
        ("unsigned", "unsigned int"),
        ("long", "long long"),
        ("unsigned long", "unsigned long long"),
        ("long long", "long long"),
        ("float", "float"),
        ("const double", "double"),
        ("bool", "bool"),
    ];
    let mut text = "struct Base { double first = 1; };\nstruct Params : Base {\n".to_owned();
    let mut names = vec!["first".to_owned()];
    for (i, (name, _)) in types.iter().enumerate() {
        text += &format!("    {name} a{i} = 1; {name} b{i}[{}] = {{}};\n", i + 2);
        names.extend([format!("a{i}"), format!("b{i}")]);
    }
    text += "    struct { int x; } other = {};\n};\n";
    text += &KERNEL.replace("p.gain", "p.a0");
    names.push("other".to_owned());
    let named: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), Value::Integer(1)))
        .collect();
    let ptx = compile(&keys(&named), compiler, &text).unwrap();
    let member = |name: &str| Member::read(&variable(&ptx, &format!("daq_param_{name}"), 24));
    assert_eq!(member("first").unwrap().offset, 0);
    let mut end = 8;
    for (i, (_, name)) in types.iter().enumerate() {
        let (one, many) = (
            member(&format!("a{i}")).unwrap(),
            member(&format!("b{i}")).unwrap(),
        );
        assert_eq!(one.to_string(), *name);
        assert_eq!(many.to_string(), format!("{name}[{}]", i + 2));
        assert_eq!(
            one.offset,
            usize::next_multiple_of(end, one.bytes),
            "{name}"
        );
        end = many.offset + many.bytes * (i + 2);
    }
    assert_eq!(member("other"), None, "a struct member cannot be set");
}

#[test]
fn kernel_without_parameters_needs_no_struct() {
    let Some(compiler) = compiler() else { return };
    let text = KERNEL
        .replace("const Params&", "const daq::NoParams&")
        .replace("p.gain + ", "");
    assert!(compile(&keys(&[]), compiler, &text).is_ok());
    // A struct named `Params` in the user's text is the user's, even though daq adds text of its own.
    assert!(compile(&keys(&[]), compiler, &format!("{PARAMS}{KERNEL}")).is_ok());
    let message = compile(&keys(&[("gain", Value::Integer(1))]), compiler, &text).unwrap_err();
    assert!(
        message.contains("`params.gain`: my.cu has no `struct Params`")
            && message.contains("an error"),
        "{message}"
    );
}

#[test]
fn compile_errors_are_located_in_user_source() {
    let Some(compiler) = compiler() else { return };
    let text = format!("{PARAMS}{KERNEL}");
    for (from, to, place, says) in [
        ("p.gain", "p.gian", "my.cu:3:49", "has no member \"gian\""),
        (
            "in.sequence()",
            "missing",
            "my.cu:3:56",
            "\"missing\" is undefined",
        ),
        ("in.index()", "in.index", "my.cu:3:", "my.cu has an error"),
        (
            "float gain = 2;",
            "flaot gain = 2;", // misspelt on purpose
            "my.cu:1:17",
            "\"flaot\" is undefined", // misspelt on purpose
        ),
        ("\n}\n", "\n", "my.cu:2:", "expected a \"}\""),
        (
            "struct Params",
            "#include \"nowhere.h\"\nstruct Params",
            "my.cu:1:",
            "nowhere.h",
        ),
    ] {
        let wrong = text.replacen(from, to, 1);
        assert_ne!(wrong, text, "{from}");
        let message = compile(&keys(&[("gain", Value::Integer(1))]), compiler, &wrong).unwrap_err();
        assert!(
            message.contains(place) && message.contains(says),
            "{message}"
        );
        assert!(
            !message.contains("[daq]") && !message.contains("[params]"),
            "{message}"
        );
    }
    // All errors are reported together.
    let wrong = text
        .replace("p.gain", "p.gian")
        .replace("in.sequence()", "missing");
    let message = compile(&keys(&[]), compiler, &wrong).unwrap_err();
    assert!(message.starts_with("my.cu has 2 errors\n"), "{message}");
}

#[test]
fn errors_in_generated_code_are_explained() {
    let Some(compiler) = compiler() else { return };
    let gain = [("gain", Value::Integer(1))];
    for (text, says) in [
        (PARAMS.to_owned(), "defines no function `on_frame`"),
        (
            format!(
                "{PARAMS}{}",
                KERNEL
                    .replace(", const Params& p", "")
                    .replace("p.gain + ", "")
            ),
            "`on_frame` has the wrong signature",
        ),
        (
            format!(
                "struct Params {{ float gian = 1; }};\n{}",
                KERNEL.replace("gain", "gian")
            ),
            "did you mean `gian`?",
        ),
        (
            format!(
                "class Params {{ float gain = 1; }};\n{}",
                KERNEL.replace("p.gain", "1")
            ),
            "cannot be set",
        ),
        (
            format!("struct Params {{ float gain = 1; int more[20000]; }};\n{KERNEL}"),
            "larger than the maximum of 60 KiB",
        ),
        (
            format!("__device__ float f();\nstruct Params {{ float gain = f(); }};\n{KERNEL}"),
            "must be constants",
        ),
    ] {
        let message = compile(&keys(&gain), compiler, &text).unwrap_err();
        assert!(message.contains(says), "{says}:\n{message}");
        assert!(message.starts_with("my.cu has an error\n"), "{message}");
    }
}

/// Checks that daq.cuh defines exactly one kernel in files that are compiled outside of daq.
#[test]
fn source_for_nvcc_and_nvrtc_has_one_kernel_in_both() {
    let Some(compiler) = compiler() else { return };
    let text = format!(
        "{PARAMS}{KERNEL}DAQ_KERNEL(on_frame, Params)\nDAQ_ENTRY(again, on_frame)\nDAQ_PARAM(Params, gain)\n"
    );
    let ours = compile(&keys(&[("gain", Value::Integer(1))]), compiler, &text).unwrap();
    assert_eq!(ours.matches(".entry").count(), 1);
    let whole = format!("#include \"daq.cuh\"\n{text}");
    let source = daq_core::gpu::driver::Source {
        name: "my.cu",
        text: &whole,
        headers: &[("daq.cuh", HEADER)],
    };
    let theirs = compiler
        .compile(&source, Target::Ptx(8, 0), &["--std=c++17"])
        .unwrap();
    let theirs = String::from_utf8(theirs).unwrap();
    assert_eq!(theirs.matches(".entry").count(), 2);
    for name in ["daq_burst(", "again("] {
        assert!(
            theirs.contains(&format!(".visible .entry {name}")),
            "{name}"
        );
    }
    for name in ["daq_param_gain", "daq_params"] {
        let length = if name == "daq_params" { 4 } else { 24 };
        assert_eq!(
            variable(&theirs, name, length),
            variable(&ours, name, length)
        );
    }
    assert!(theirs.contains(".u32 daq_header = 2"));
}

#[test]
fn compiler_gets_options_and_adjacent_headers() {
    let Some(compiler) = compiler() else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("mine.h"), "#define TWICE 2\n").unwrap();
    let text = format!(
        "#include \"mine.h\"\n{PARAMS}{}",
        KERNEL.replace("p.gain", "p.gain * (TWICE * LEVEL * DAQ_THREADS)")
    );
    let keys = FileKernel {
        options: vec!["-DLEVEL=3".to_owned(), "-std=c++20".to_owned()],
        threads: 128,
        ..FileKernel::new("my.cu")
    };
    let target = Target::Ptx(8, 0);
    let made = keys.compile(
        compiler,
        &text,
        Some(directory.path()),
        target,
        Entry::Burst,
    );
    let made = String::from_utf8(made.unwrap()).unwrap();
    // 2 * 3 * 128, as the bits of a float.
    assert!(
        made.contains("0f44400000") && made.contains(".maxntid"),
        "{made}"
    );
    let message = keys
        .compile(compiler, &text, None, target, Entry::Burst)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("mine.h") && message.contains("my.cu:1:"),
        "{message}"
    );
}
