//! Tests `daq check`: errors in files, the list of skipped checks, and the number of messages.

use daq_testkit::{Daq, Done, Python, assert_contains, repository, skip};

const SOURCE: &str =
    "[source.adc]\ndriver = \"sim\"\npacket = 1024\nring = \"raw\"\n[ring.raw]\nslot = 4096\n";
const SINK: &str = "[sink.drop]\ndriver = \"null\"\ninput = \"made\"\n[ring.made]\n";
const CODE: &str = "struct Params { float gain = 2; int taps[3] = {}; };\n\
                    __device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {\n    \
                    if (in.index() == 0) out.as<float>()[0] = p.gain + p.taps[0];\n}\n";

/// Returns a pipeline with a kernel in `my.cu`.
fn with_kernel(keys: &str) -> String {
    format!(
        "{SOURCE}{SINK}[kernel.k]\nfile = \"my.cu\"\ninput = \"raw\"\noutput = \"made\"\n{keys}\n"
    )
}

/// Runs `daq` with `arguments` and returns its errors. Checks the exit code for a wrong configuration.
fn errors(daq: &Daq, arguments: &[&str]) -> String {
    let all: Vec<&str> = ["check", "daq.toml"]
        .iter()
        .chain(arguments)
        .copied()
        .collect();
    let Done {
        code,
        stdout,
        stderr,
    } = daq.cli(&all);
    assert_eq!((code, stdout.as_str()), (78, ""), "{stderr}");
    stderr
}

/// Returns the path of NVIDIA's runtime compiler in the tests' Python environment.
fn compiler() -> Result<String, String> {
    let python = Python::with(&["nvidia.cuda_nvrtc"])?;
    let find = "import nvidia.cuda_nvrtc as m; print(list(m.__path__)[0])";
    let folder = python.run(find, &[] as &[&str]);
    Ok(format!("{}/lib/libnvrtc.so.12", folder.trim()))
}

#[test]
fn check_kernel_compile_error_shows_source_lines() {
    let compiler = match compiler() {
        Ok(compiler) => compiler,
        Err(why) => skip!("{why}"),
    };
    let daq = Daq::new(&with_kernel("")).env("DAQ_NVRTC", &compiler);
    daq.write("my.cu", &CODE.replace("p.gain", "p.gian"));
    let output = errors(&daq, &["--no-hardware"]);
    assert_contains!(output => "--> my.cu:3:", "has no member \"gian\"");
    assert_eq!(output.matches("error: ").count(), 1, "{output}");
    daq.write("my.cu", CODE);
    let done = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok();
    assert!(!done.stdout.contains("compiled"), "{}", done.stdout);
}

#[test]
fn check_kernel_params_unlike_struct_are_reported() {
    let compiler = match compiler() {
        Ok(compiler) => compiler,
        Err(why) => skip!("{why}"),
    };
    for (params, place, message) in [
        ("{ gian = 1.5 }", "15:19", "did you mean `gain`?"),
        ("{ gain = true }", "15:19", "write a number"),
        ("{ taps = [1, 2] }", "15:19", "write 3"),
        ("{ taps = [1, 2, 2.5] }", "15:19", "write an integer"),
        ("{ taps = 4 }", "15:19", "write an array of 3"),
    ] {
        let daq = Daq::new(&with_kernel(&format!("params = {params}"))).env("DAQ_NVRTC", &compiler);
        daq.write("my.cu", CODE);
        let output = errors(&daq, &["--no-hardware"]);
        assert_contains!(output => &format!("--> daq.toml:{place}"), message);
        assert_eq!(output.matches("error: ").count(), 1, "{output}");
    }
    let daq = Daq::new(&with_kernel("params = { gain = 3, taps = [1, 2, 3] }"));
    let daq = daq.env("DAQ_NVRTC", &compiler);
    daq.write("my.cu", CODE);
    let _ = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok();
}

#[test]
fn check_lists_unchecked_items() {
    let daq = Daq::new(&with_kernel("")).env("DAQ_NVRTC", "/nowhere/libnvrtc.so.12");
    daq.write("my.cu", CODE);
    let output = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok().stdout;
    let compiled = "not checked: [kernel.k]: my.cu was not compiled";
    assert_contains!(output => compiled, "nvidia-cuda-nvrtc", "not checked: cores, memory, GPUs");
    let daq = Daq::new(
        "[source.adc]\ndriver = \"udp\"\nlisten = \"127.0.0.1:4950\"\nring = \"raw\"\n\
         format = { kind = \"raw\", header = 16, payload = 1024, sequence = { offset = 0, bytes = 8 } }\n\
         [ring.raw]\n[sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\n",
    );
    let output = daq.cli(&["check", "daq.toml"]).ok().stdout;
    assert_contains!(output =>
        "[source.adc]: whether UDP 127.0.0.1:4950 is free", !"no-hardware", !"out"
    );
    let output = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok().stdout;
    assert_contains!(output => "[sink.disk]: whether out can be written to (--no-hardware)");
}

#[test]
fn check_relative_compiler_path_is_rejected() {
    let daq = Daq::new(&with_kernel("")).env("DAQ_NVRTC", "lib/libnvrtc.so");
    daq.write("my.cu", CODE);
    let output = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok().stdout;
    assert_contains!(output => "DAQ_NVRTC=lib/libnvrtc.so is a relative path");
}

#[test]
fn check_missing_file_is_located() {
    let output = errors(&Daq::new(&with_kernel("")), &["--no-hardware"]);
    assert_contains!(output => "my.cu does not exist", "--> daq.toml:12:8");
    let replay = "[source.adc]\ndriver = \"replay\"\npath = [\"a.pcap\", \"b.pcap\"]\nring = \"raw\"\n\
                  format = { kind = \"raw\", header = 16, payload = 1024, sequence = { offset = 0, bytes = 8 } }\n\
                  [ring.raw]\n[sink.drop]\ndriver = \"null\"\ninput = \"raw\"\n";
    let daq = Daq::new(replay);
    daq.write("a.pcap", "");
    let output = errors(&daq, &[]);
    assert_contains!(output => "b.pcap does not exist", "--> daq.toml:3:19");
    assert_eq!(output.matches("error: ").count(), 1, "{output}");
    let listed = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok().stdout;
    assert_contains!(listed => "whether b.pcap exists (--no-hardware)");
    let fpga = "[source.adc]\ndriver = \"fpga\"\ndevice = \"emulated:litepcie\"\nengine = \"litepcie\"\n\
                csr = \"csr.csv\"\nring = \"raw\"\n[ring.raw]\n[sink.drop]\ndriver = \"null\"\ninput = \"raw\"\n";
    let output = errors(&Daq::new(fpga), &[]);
    assert_contains!(output => "csr.csv does not exist", "--> daq.toml:5:7");
    let daq = Daq::new(&format!(
        "{SOURCE}[sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"daq.toml/out\"\n"
    ));
    let output = errors(&daq, &[]);
    assert_contains!(output => "daq.toml is a file, not a directory");
}

#[test]
fn check_url_as_path_is_rejected() {
    for driver in ["file", "zarr"] {
        let text = format!(
            "{SOURCE}[sink.disk]\ndriver = \"{driver}\"\ninput = \"raw\"\npath = \"s3://bucket/x\"\n"
        );
        let daq = Daq::new(&text);
        let output = errors(&daq, &[]);
        assert_contains!(output => "s3://bucket/x is a URL, not a path");
        assert_eq!(daq.cli(&["run", "daq.toml"]).code, 78);
    }
}

#[test]
fn check_syntax_error_is_reported_once() {
    let output = errors(
        &Daq::new("[source.adc\ndriver = 1\n[ring.raw]\nslots = [\n"),
        &["--set", "ring.raw.slots=4"],
    );
    assert_eq!(output.matches("error: ").count(), 1, "{output}");
    assert!(output.contains("daq.toml:1:12"), "{output}");
}

#[test]
fn check_two_bad_values_are_both_reported() {
    let output = errors(
        &Daq::new(
            "[source.adc]\ndriver = \"udp\"\nlisten = \"127.0.0.1:4950\"\nring = \"raw\"\n\
             [source.adc.format]\nkind = \"raw\"\nheader = \"16 B\"\npayload = \"8 parsecs\"\n\
             sequence = { offset = 0, bytes = 9 }\n[ring.raw]\n[sink.drop]\ndriver = \"null\"\ninput = \"raw\"\n",
        ),
        &[],
    );
    assert_contains!(output =>
        "unknown unit \"parsecs\"", "a number must have 1 to 8 bytes, not 9"
    );
    assert_eq!(output.matches("error: ").count(), 2, "{output}");
}

#[test]
fn check_too_many_counters_is_reported() {
    let sinks = (0..1500).map(|i| format!("[sink.s{i}]\ndriver = \"null\"\ninput = \"raw\"\n"));
    let sinks = sinks.collect::<Vec<_>>().concat();
    let daq = Daq::new(&format!("{SOURCE}{sinks}"));
    let output = errors(&daq, &["--no-hardware"]);
    assert_contains!(output => "at most 8160 counters, but more are needed", "help: split");
    let name = "n".repeat(150);
    let daq = Daq::new(&format!(
        "{SOURCE}[sink.{name}]\ndriver = \"null\"\ninput = \"raw\"\n"
    ));
    let output = errors(&daq, &["--no-hardware"]);
    assert_contains!(output => "--> daq.toml:7:1", "shorten");
}

#[test]
fn check_nul_in_path_is_located() {
    let daq = Daq::new(&format!(
        "{SOURCE}[sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"o\\u0000t\"\n"
    ));
    let output = errors(&daq, &[]);
    assert_contains!(output => "NUL", "--> daq.toml:10:8");
}

#[test]
fn check_many_unknown_keys_are_summarised() {
    let keys = (0..10_000).map(|i| format!("pattern{i} = {i}\n"));
    let keys = keys.collect::<Vec<_>>().concat();
    let daq = Daq::new(&format!(
        "[source.adc]\ndriver = \"sim\"\npacket = 1024\nring = \"raw\"\n{keys}[ring.raw]\n\
         [sink.drop]\ndriver = \"null\"\ninput = \"raw\"\n"
    ));
    let output = errors(&daq, &[]);
    assert_contains!(output => "9980 more unknown keys in [source.adc]");
    assert!(output.len() < 20_000, "{} bytes", output.len());
}

#[test]
fn check_sample_type_mismatch_is_reported() {
    for name in ["int24", "uint2", "float128"] {
        let output = errors(
            &Daq::new(
                &format!("{SOURCE}samples = {{ type = \"{name}\" }}\n")
                    .replace("[ring.raw]\nslot = 4096\n", ""),
            ),
            &[],
        );
        assert_contains!(output => "choose \"int8\", \"uint8\", \"int16\", \"uint16\"", !"did you mean \"int");
    }
}

#[test]
fn check_example_kernels_compile() {
    let compiler = match compiler() {
        Ok(compiler) => compiler,
        Err(why) => skip!("{why}"),
    };
    for path in daq_testkit::configs() {
        let daq = Daq::new(&std::fs::read_to_string(&path).unwrap()).env("DAQ_NVRTC", &compiler);
        for code in daq_testkit::files(&repository().join("configs/kernels"), ".cu") {
            let name = format!("configs/kernels/{}", code.file_name().unwrap().display());
            daq.write(&name, &std::fs::read_to_string(code).unwrap());
        }
        let output = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok().stdout;
        assert!(!output.contains("compiled"), "{}: {output}", path.display());
    }
}

#[test]
fn check_rejects_what_run_rejects() {
    let sink = "[sink.disk]\ndriver = \"file\"\ninput = \"raw\"\n";
    let name = "n".repeat(256);
    let daq = Daq::new(&format!("{SOURCE}{sink}path = \"out/{name}\"\n"));
    for arguments in [&[][..], &["--no-hardware"]] {
        let output = errors(&daq, arguments);
        assert!(output.contains("256 bytes, but at most 255"), "{output}");
    }
    let daq = Daq::new(&format!("{SOURCE}{sink}path = \"daq.toml\"\n"));
    let output = errors(&daq, &[]);
    assert!(output.contains("is a file, not a directory"), "{output}");
    let outcome = daq.run(&["--for", "10 ms"]);
    assert_contains!(outcome.stderr => "move that file away");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    let daq = Daq::new(&format!(
        "{SOURCE}[sink.drop]\ndriver = \"null\"\ninput = \"raw\"\n[http]\nlisten = \"{address}\"\n"
    ));
    for code in [
        daq.cli(&["check", "daq.toml"]),
        daq.cli(&["run", "daq.toml"]),
    ] {
        assert_eq!(code.code, 69, "{}", code.stderr);
        assert_contains!(code.stderr => "another program uses this port");
    }
    let output = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok().stdout;
    assert_contains!(output => &format!("[http]: whether TCP {address} is free"));
    drop(port);
    let _ = daq.cli(&["check", "daq.toml"]).ok();
}

#[test]
fn check_full_slot_kernel_with_detected_heap_size_warns() {
    let text = |format: &str| {
        format!(
            "[source.adc]\ndriver = \"udp\"\nlisten = \"127.0.0.1:4950\"\nring = \"raw\"\n\
             format = {{ kind = \"spead\"{format} }}\n[ring.raw]\nslots = 32\n\
             [kernel.level]\nuse = \"stats\"\ninput = \"raw\"\noutput = \"made\"\n{SINK}"
        )
    };
    let warning = "kernel `level` needs frames of 1 MiB";
    let daq = Daq::new(&text(""));
    let done = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok();
    assert_contains!(done.stderr => warning, "`heap` in [source.adc.format]");
    let plan = daq.cli(&["plan", "--no-hardware", "daq.toml"]).ok();
    assert!(plan.stderr.contains(warning), "{}", plan.stderr);
    let frames = "frames   int8, 1 channel × up to 1048576 samples";
    assert!(plan.stdout.contains(frames), "{}", plan.stdout);
    let daq = Daq::new(&text(", heap = \"1 MiB\""));
    let plan = daq.cli(&["plan", "--no-hardware", "daq.toml"]).ok();
    assert!(!plan.stderr.contains(warning) && !plan.stdout.contains("× up to"));
}

/// `check` must find these mistakes, which prevented the start, or changed data, before.
#[test]
fn check_cards_and_samples_before_start() {
    let card = |keys: &str, slots: u32| {
        format!(
            "[source.adc]\ndriver = \"fpga\"\nring = \"made\"\n{keys}\n{SINK}slots = {slots}\nslot = \"4 KiB\"\n"
        )
    };
    let litepcie = "device = \"emulated:litepcie\"";
    for (keys, slots, expected) in [
        (litepcie, 3, "slots = 4 or more"),
        (
            "device = \"emulated:xdma\"\ncredits = false",
            2,
            "slots = 3 or more",
        ),
        (
            "device = \"emulated:litepcie\"\nchannel = 7",
            8,
            "no channel 7",
        ),
        (
            "device = \"0000:3b:00.0\"\nengine = \"external\"\ncommand = [\"./absent\"]",
            8,
            "there is no program",
        ),
        (
            "device = \"0000:3b:00.0\"\nengine = \"litepcie\"\ncsr = \"csr.csv\"",
            8,
            "lists no DMA writer",
        ),
        (
            "device = \"emulated:xdma\"\nsamples = { channels = 0 }",
            8,
            "at least 1",
        ),
        (
            "device = \"emulated:xdma\"\nsamples = { rate = \"0 Hz\" }",
            8,
            "above 0",
        ),
    ] {
        let daq = Daq::new(&card(keys, slots));
        daq.write("csr.csv", "junk");
        let output = errors(&daq, &[]);
        assert!(output.contains(expected), "{keys}: {output}");
    }
    let daq = Daq::new(&card(litepcie, 4));
    let _ = daq.cli(&["check", "daq.toml"]).ok();
}
