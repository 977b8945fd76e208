//! Tests the command line: every command, every exit code, every example.

use daq_core::entry::{KernelEntry, SinkEntry, SourceEntry};
use daq_core::plan::FILE_KERNEL;
use daq_drivers::packet::FormatEntry;
use daq_pipelines::registry;
use daq_testkit::{Daq, Done, assert_contains, program, skip};
use std::io::Write;
use std::process::{Command, Stdio};

/// A pipeline that ends without a stop request.
pub const SMALL: &str = r#"
[source.adc]
driver = "sim"
pattern = "counter"
packet = 64
packets = 1000
ring = "raw"

[ring.raw]
slot = 512
slots = 16

[sink.drop]
driver = "null"
input = "raw"
"#;

/// The configuration in the design document.
const DESIGN: &str = r#"
[source.adc]
driver = "udp"
listen = "0.0.0.0:4950"
ring   = "raw"

[source.adc.format]
kind     = "raw"         # or "spead", "vita49", ...
header   = "16 B"        # before the payload of each packet
payload  = "8 KiB"
sequence = { offset = 0, bytes = 8, endian = "big" }

[ring.raw]
memory = "auto"          # "host", "cuda:0"; auto = first GPU, host memory where there is none
slot   = "1 MiB"
slots  = 64

[kernel.spectrum]
use    = "power-spectrum" # or  file = "my.cu", dispatch = "persistent"
input  = "raw"
output = "spectra"

[ring.spectra]
memory = "auto"
slot   = "64 KiB"
slots  = 64

[sink.disk]
driver = "file"
input  = "spectra"
path   = "out/"

[http]
listen = "127.0.0.1:9464"
"#;

fn sources() -> Vec<&'static str> {
    registry().names::<SourceEntry>()
}

/// Returns the names of the built-in kernels.
fn kernels() -> Vec<&'static str> {
    let names = registry().names::<KernelEntry>().into_iter();
    names.filter(|name| *name != FILE_KERNEL).collect()
}

fn sinks() -> Vec<&'static str> {
    registry().names::<SinkEntry>()
}

/// Checks the exit code for a wrong configuration and returns stderr.
fn errors(done: Done) -> String {
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (78, ""),
        "{}",
        done.stderr
    );
    done.stderr
}

#[test]
fn list_prints_all_entries_with_summary() {
    let list = Daq::new("").cli(&["list"]).ok().stdout;
    for entry in registry().entries() {
        let (name, summary) = (entry.name(), entry.summary());
        assert!(
            list.lines().any(|line| line.split_whitespace().next() == Some(name) && line.ends_with(summary)),
            "{name} is not in\n{list}"
        );
    }
}

#[test]
fn new_every_template_is_valid() {
    let all = [sources(), kernels(), sinks()].concat();
    let mut asked: Vec<String> = all.into_iter().map(ToOwned::to_owned).collect();
    asked.push("sim/select/select/file".to_owned());
    for source in sources() {
        for sink in sinks() {
            asked.push(format!("{source}/{sink}"));
            asked.extend(
                kernels()
                    .iter()
                    .map(|kernel| format!("{source}/{kernel}/{sink}")),
            );
            asked.push(format!("{source}/convert/power-spectrum/{sink}"));
        }
    }
    for parts in asked {
        let daq = Daq::new("");
        let text = daq.cli(&["new", &parts]).ok().stdout;
        // `check` compares packets with the interface's MTU, so the device of `hsb` must be reachable through the
        // loopback interface.
        let local = text.replace("\"192.168.0.2\"", "\"127.0.0.1\"");
        assert_eq!(
            local != text,
            parts.split('/').next() == Some("hsb"),
            "{text}"
        );
        daq.write("daq.toml", &local);
        // The example of `replay` names this file.
        daq.write("recording.pcap", "");
        for name in parts.split('/') {
            assert!(text.contains(&format!("\"{name}\"")), "{parts}:\n{text}");
        }
        for arguments in [
            &["check", "daq.toml", "--no-hardware"][..],
            &["check", "daq.toml"],
        ] {
            let done = daq.cli(arguments);
            assert_eq!(
                done.code, 0,
                "{parts}: {arguments:?}\n{}\n{text}",
                done.stderr
            );
            assert!(done.stdout.contains("ok"), "{}", done.stdout);
        }
    }
}

/// Returns each source whose packets have a configurable format, with each format, as in `udp-spead`.
fn kinds() -> Vec<(&'static str, &'static str)> {
    let registry = registry();
    let is_packets = |name: &&str| {
        let source = registry.find::<SourceEntry>(name).unwrap();
        (source.schema)(&registry)
            .to_value()
            .pointer("/properties/format")
            .is_some()
    };
    let sources = sources().into_iter().filter(is_packets);
    let formats = registry.names::<FormatEntry>();
    sources
        .flat_map(|source| formats.iter().map(move |format| (source, *format)))
        .collect()
}

#[test]
fn new_every_kind_is_valid() {
    let kinds = kinds();
    assert!(kinds.contains(&("udp", "spead")) && kinds.contains(&("replay", "raw")));
    let daq = Daq::new("");
    daq.write("recording.pcap", "");
    for (source, format) in kinds {
        let text = daq
            .cli(&["new", &format!("{source}-{format}/file")])
            .ok()
            .stdout;
        let lines: Vec<String> = text.lines().map(|line| line.replace(' ', "")).collect();
        let has = |start: String| lines.iter().filter(|line| line.starts_with(&start)).count();
        for expected in [
            format!("[source.{source}]"),
            format!("driver=\"{source}\""),
            format!("[source.{source}.format]"),
            format!("kind=\"{format}\""),
            "[sink.file]".to_owned(),
        ] {
            assert_eq!(has(expected.clone()), 1, "{expected}\n{text}");
        }
        daq.write(
            "daq.toml",
            &text.replace("\"192.168.0.2\"", "\"127.0.0.1\""),
        );
        let _ = daq.cli(&["check", "daq.toml"]).ok();
    }
}

#[test]
fn completions_contain_kinds() {
    let script = Daq::new("").cli(&["completions", "bash"]).ok().stdout;
    for (source, format) in kinds() {
        assert_contains!(script => &format!(" {source}-{format} "));
    }
}

#[test]
fn new_unknown_name_is_reported() {
    let daq = Daq::new("");
    let done = daq.cli(&["new", "sim/power-spektrum"]);
    assert_eq!(done.code, 64);
    assert_contains!(done.stderr => "did you mean `power-spectrum`?");
    let done = daq.cli(&["new", "udp-speed"]);
    assert_eq!(done.code, 64);
    assert_contains!(done.stderr => "did you mean `udp-spead`?");
    assert_eq!(daq.cli(&["new", "sim-spead"]).code, 64);
    let done = daq.cli(&["new", "null/sim"]);
    assert_eq!(done.code, 64, "{}", done.stderr);
    assert_contains!(done.stderr => "SOURCE/KERNEL/SINK");
}

#[test]
fn new_pipeline_with_file_kernel_is_valid() {
    let daq = Daq::new("");
    for parts in ["sim/file/null", "udp/file/file", "file/zarr"] {
        let text = daq.cli(&["new", parts]).ok().stdout;
        assert_contains!(text => "[kernel.my-kernel]", "file = \"my.cu\"");
        daq.write("daq.toml", &text);
        daq.write("my.cu", include_str!("../../../configs/kernels/clip.cu"));
        let _ = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok();
    }
    let text = daq.cli(&["new", "sim/file"]).ok().stdout;
    assert_contains!(text => "[sink.file]", !"[kernel.my-kernel]");
    let header = daq.cli(&["reference", "kernel-header"]).ok().stdout;
    assert_contains!(header => "#define DAQ_KERNEL(FUNCTION, PARAMS)");
}

#[test]
fn config_of_design_document_is_valid() {
    let daq = Daq::new(DESIGN);
    let _ = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok();
    let plan = daq
        .cli(&["plan", "--no-hardware", "--json", "daq.toml"])
        .ok()
        .json();
    assert_eq!(plan["sources"][0]["driver"], "udp");
    assert!(
        plan["rings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|ring| ring["name"] == "raw" && ring["slots"] == 64)
    );
}

#[test]
fn config_errors_are_reported_together_with_location_and_suggestion() {
    let text = SMALL
        .replace("slots = 16", "slotz = 16")
        .replace("pattern = \"counter\"", "patern = \"counter\"") // misspelt on purpose
        .replace("driver = \"null\"", "driver = \"nul\"")
        .replace("input = \"raw\"", "input = \"row\"");
    let message = errors(Daq::new(&text).cli(&["check", "daq.toml"]));
    let line_of = |what: &str| {
        text.lines()
            .position(|line| line.starts_with(what))
            .unwrap()
            + 1
    };
    for (wrong, column, suggestion) in [
        ("slotz", 1, "did you mean `slots`?"),
        ("patern", 1, "did you mean `pattern`?"), // misspelt on purpose
        ("driver = \"nul\"", 10, "did you mean \"null\"?"),
        ("input = \"row\"", 9, "did you mean \"raw\"?"),
    ] {
        assert_contains!(message => &format!("daq.toml:{}:{column}", line_of(wrong)); "{wrong}");
        assert!(message.contains(suggestion), "{suggestion}:\n{message}");
        assert_contains!(message =>
            text.lines().nth(line_of(wrong) - 1).unwrap(); "the line of {wrong}"
        );
    }
    // One mistake must give one error. The component that names the ring whose section has a wrong key is correct.
    assert!(
        message.contains("4 errors") && message.matches("\nerror").count() == 3,
        "{message}"
    );
    assert!(!message.contains("no ring `raw`"), "{message}");
}

#[test]
fn config_invalid_section_name_is_rejected_before_use_as_path() {
    let daq = Daq::new(&format!("[daq]\nname = \"../up\"\n{SMALL}"));
    let message = errors(daq.cli(&["run", "daq.toml", "--report", "json"]));
    assert_contains!(message => "daq.toml:2:8", "1 error ");
    assert!(!daq.path("state").exists());
}

#[test]
fn config_unknown_driver_is_reported_with_other_errors() {
    let text = SMALL
        .replace(
            "\"sim\"",
            "\"smi\"\nwait = \"bsy\"\npakcet = 64\ncores = [99999]",
        )
        .replace(
            "driver = \"null\"",
            "driver = \"nul\"\nburst = 0\ntuoch = true",
        );
    let message = errors(Daq::new(&text).cli(&["check", "daq.toml"]));
    for error in [
        "unknown driver \"smi\" in [source.adc]",
        "`wait` cannot be \"bsy\"",
        "unknown key `pakcet` in [source.adc]", // misspelt on purpose
        "core 99999 is not among the cores of this process",
        "unknown driver \"nul\" in [sink.drop]",
        "`burst` is 0, but must be 1 to 4096",
        "unknown key `tuoch` in [sink.drop]",
    ] {
        assert_contains!(message => &format!("error: {error}"); "{error}");
    }
    assert_contains!(message => "7 errors in", !"warning");
}

#[test]
fn plan_shows_data_path() {
    let plan = Daq::new(DESIGN)
        .cli(&["plan", "--no-hardware", "daq.toml"])
        .ok()
        .stdout;
    for line in [
        "    input    UDP 0.0.0.0:4950",
        "    to       files out/disk-*",
        "    claims   TCP 127.0.0.1:9464",
    ] {
        assert!(
            plan.lines().any(|shown| shown == line),
            "{line:?} is not in\n{plan}"
        );
    }
}

#[test]
fn run_unknown_key_is_rejected() {
    let done =
        Daq::new(&SMALL.replace("slots", "slotz")).cli(&["run", "daq.toml", "--report", "json"]);
    assert!(errors(done).contains("did you mean `slots`?"));
}

#[test]
fn config_invalid_toml_is_located() {
    let message = errors(Daq::new("[source.adc\ndriver = 1").cli(&["check", "daq.toml"]));
    assert!(message.contains("daq.toml:1:"), "{message}");
    let message = errors(Daq::new("").cli(&["check", "absent.toml"]));
    assert!(message.contains("absent.toml"), "{message}");
}

#[test]
fn config_port_used_twice_is_rejected() {
    let source = |name: &str, port: u16| {
        format!(
            "[source.{name}]\ndriver = \"udp\"\nlisten = \"127.0.0.1:{port}\"\nring = \"{name}\"\n\
             format = {{ kind = \"raw\", header = 16, payload = 1024, sequence = {{ offset = 0, bytes = 8 }} }}\n\
             [ring.{name}]\n[sink.{name}-out]\ndriver = \"null\"\ninput = \"{name}\"\n"
        )
    };
    let message =
        errors(Daq::new(&(source("a", 4950) + &source("b", 4950))).cli(&["check", "daq.toml"]));
    assert_contains!(message =>
        "[source.a] and [source.b] both claim UDP 127.0.0.1:4950", "daq.toml:12:10", "\n 3 | listen"
    );
    let _ = Daq::new(&(source("a", 4950) + &source("b", 4951)))
        .cli(&["check", "daq.toml"])
        .ok();
}

#[test]
fn config_output_path_used_twice_is_rejected() {
    let file = |name: &str, stem: &str| {
        format!(
            "[sink.{name}]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\nname = \"{stem}\"\n"
        )
    };
    let message = errors(
        Daq::new(&(SMALL.to_owned() + &file("a", "x") + &file("b", "x")))
            .cli(&["check", "daq.toml"]),
    );
    assert_contains!(message => "[sink.a] and [sink.b] both claim");
    // Relative paths start from the working directory of daq.
    let daq = Daq::new("");
    // The path as the process sees it, without symbolic links.
    let here = daq.path("").canonicalize().unwrap().join("out");
    for path in ["./out/", "x/../out", here.to_str().unwrap()] {
        let other = file("b", "x").replace("\"out\"", &format!("{path:?}"));
        daq.write("daq.toml", &(SMALL.to_owned() + &file("a", "x") + &other));
        let message = errors(daq.cli(&["check", "daq.toml"]));
        assert_contains!(message => "[sink.a] and [sink.b] both claim"; "{path}");
    }
    let below = file("b", "y").replace("\"out\"", "\"out/x\"");
    for other in [file("b", "y"), below] {
        let _ = Daq::new(&(SMALL.to_owned() + &file("a", "x") + &other))
            .cli(&["check", "daq.toml"])
            .ok();
    }
}

#[test]
fn config_section_name_with_path_is_rejected() {
    let sink = "[sink.\"../x\"]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\n";
    let daq = Daq::new(&(SMALL.to_owned() + sink));
    let message = errors(daq.cli(&["check", "daq.toml"]));
    assert_contains!(message =>
        "\"../x\" is not a valid name", "[sink.\"../x\"]\n", "letters, digits", "1 error "
    );
}

#[test]
fn config_values_follow_precedence_set_environment_file() {
    let capacity =
        |daq: &Daq, arguments: &[&str]| daq.run(arguments).ok().count("rings.raw.capacity");
    let daq = Daq::new(SMALL);
    assert_eq!(capacity(&daq, &[]), 16);
    assert_eq!(capacity(&daq, &["--set", "ring.raw.slots=32"]), 32);
    let daq = daq.env("DAQ__RING__RAW__SLOTS", "64");
    assert_eq!(capacity(&daq, &[]), 64);
    assert_eq!(capacity(&daq, &["--set", "ring.raw.slots=32"]), 32);
}

#[test]
fn config_invalid_override_names_its_origin() {
    let message =
        errors(Daq::new(SMALL).cli(&["check", "daq.toml", "--set", "ring.raw.slots=many"]));
    assert_contains!(message => "--set ring.raw.slots=many:1:16");
    let message = errors(Daq::new(SMALL).cli(&["check", "daq.toml", "--set", "ring.raw.slotz=3"]));
    assert!(message.contains("--set ring.raw.slotz=3:1:"), "{message}");
    let message = errors(Daq::new(SMALL).cli(&["check", "daq.toml", "--set", "nonsense"]));
    assert!(message.contains("--set nonsense"), "{message}");
    let daq = Daq::new(SMALL).env("DAQ__RING__RAW__SLOTS", "many");
    let message = errors(daq.cli(&["check", "daq.toml"]));
    assert_contains!(message => "environment DAQ__RING__RAW__SLOTS", "1 error ");
}

#[test]
fn config_variables_in_strings_are_expanded() {
    let text = SMALL.replace("packet = 64\n", "packet = \"${PACKET:-64} B\"\n");
    assert_eq!(
        Daq::new(&text).run(&[]).ok().count("sources.adc.bytes"),
        64_000
    );
    assert_eq!(
        Daq::new(&text)
            .env("PACKET", "128")
            .run(&[])
            .ok()
            .count("sources.adc.bytes"),
        128_000
    );
    let message = errors(Daq::new(&text.replace(":-64", "")).cli(&["check", "daq.toml"]));
    assert_contains!(message => "PACKET", "daq.toml:5:");
}

#[test]
fn config_directory_is_merged() {
    let (source, rest) = SMALL.split_once("[ring.raw]").unwrap();
    let daq = Daq::new("this is no TOML, and in no directory");
    daq.write("conf/10-source.toml", source);
    daq.write("conf/20-rest.toml", &format!("[ring.raw]{rest}"));
    daq.write("conf/notes.txt", "not read");
    let _ = daq.cli(&["check", "-C", "conf"]).ok();
    let live = daq.spawn_command(daq.command(&["run", "-C", "conf", "--report", "json"]));
    assert_eq!(live.wait().ok().count("sources.adc.delivered"), 1000);
    let _ = daq
        .cli(&["check", "conf/10-source.toml", "conf/20-rest.toml"])
        .ok();
    let message = errors(daq.cli(&["check", "conf/10-source.toml"]));
    assert_contains!(message => "no ring `raw`", "10-source.toml");
    daq.write("conf/30-again.toml", "[ring.raw]\nslots = 4\n");
    let message = errors(daq.cli(&["check", "-C", "conf"]));
    assert_contains!(message => "20-rest.toml", "30-again.toml");
}

#[test]
fn check_missing_hardware_is_not_config_error() {
    let daq = Daq::new(&SMALL.replace("[ring.raw]", "[ring.raw]\nmemory = \"cuda:0\""));
    let _ = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok();
    let done = daq.cli(&["run", "daq.toml", "--report", "json"]);
    if done.code == 0 {
        skip!("this machine has a GPU");
    }
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (69, ""),
        "{}",
        done.stderr
    );
    assert_contains!(done.stderr => "cuda:0", "memory = ");
}

#[test]
fn usage_error_exits_64_with_hint() {
    let daq = Daq::new(SMALL);
    for arguments in [
        &["frobnicate"][..],
        &["run"],
        &["run", "daq.toml", "--for", "soon"],
        &["run", "daq.toml", "--frames", "raw"],
        &["run", "daq.toml", "--frames", "nothing=3"],
        &[
            "check",
            "daq.toml",
            "--no-hardware",
            "--topology",
            "machine",
        ],
        &["bench", "rdma", "--rounds", "0"],
        &["bench", "tcp", "--window", "0 s"],
        &["bench", "tcp", "--sizes", "8 B,128 MiB"],
        &["bench", "copy", "--mode", "latency", "--sizes", "16 MiB"],
        &["graph", "daq.toml", "--format", "png"],
        &["completions", "tcl"],
    ] {
        let done = daq.cli(arguments);
        assert_eq!(
            (done.code, done.stdout.as_str()),
            (64, ""),
            "{arguments:?}: {}",
            done.stderr
        );
        assert!(
            done.stderr.starts_with("error: "),
            "{arguments:?}: {}",
            done.stderr
        );
    }
    assert!(daq.cli(&["--help"]).ok().stdout.contains("doctor"));
    assert!(daq.cli(&["--version"]).ok().stdout.starts_with("daq "));
}

#[test]
fn run_ends_after_duration_or_frame_count() {
    let daq = Daq::new(&SMALL.replace("packets = 1000\n", ""));
    // The source never ends, so only the time limit ends the run.
    let _ = daq.run_a_while(&[]);
    let outcome = daq.run(&["--frames", "raw=100"]).ok();
    assert!(
        outcome.count("rings.raw.published") >= 100,
        "{:#}",
        outcome.report
    );
}

#[test]
fn run_without_json_prints_text_report() {
    let done = Daq::new(SMALL).cli(&["run", "daq.toml"]).ok();
    assert_contains!(done.stdout =>
        "source adc: no loss in 1000 packets; expected 1000, delivered 1000, pending 0 (64000 bytes)",
        "ring raw: produced 125, published 125, refused 0;",
        "reader drop of raw: published 125, read 125, overrun 0, discarded 0, pending 0",
        "sink drop: frames 125, bytes 64000, files 0"
    );
}

/// Checks a graph: it must contain every component, and one arrow per connection.
fn draws(drawing: &str, arrow: &str) {
    assert_contains!(drawing =>
        "antenna", "voltages", "spectrum", "spectra", "health", "statistics", "spectra-on-disk"
    );
    assert_eq!(drawing.matches(arrow).count(), 7, "{drawing}");
}

fn quickstart() -> String {
    daq_testkit::repository()
        .join("configs/quickstart.toml")
        .to_str()
        .unwrap()
        .to_owned()
}

#[test]
fn graph_command_prints_graph() {
    let daq = Daq::new("");
    let mermaid = daq
        .cli(&["graph", &quickstart(), "--format", "mermaid"])
        .ok()
        .stdout;
    assert!(
        mermaid.starts_with("flowchart") || mermaid.starts_with("graph"),
        "{mermaid}"
    );
    draws(&mermaid, "-->");
    assert_eq!(daq.cli(&["graph", &quickstart()]).ok().stdout, mermaid);
    let dot = daq
        .cli(&["graph", &quickstart(), "--format", "dot"])
        .ok()
        .stdout;
    draws(&dot, " -> ");
    let Some(program) = program("dot") else {
        skip!("graphviz is not installed, so the output was not checked with `dot -Tsvg`")
    };
    let mut child = Command::new(program)
        .arg("-Tsvg")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(dot.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    // Graphviz writes hyphens in text as character references.
    let svg = String::from_utf8_lossy(&output.stdout).replace("&#45;", "-");
    assert!(svg.contains("spectra-on-disk"), "{svg}");
}

#[test]
fn completions_are_valid_scripts() {
    let daq = Daq::new("");
    for shell in ["bash", "zsh", "fish"] {
        let script = daq.cli(&["completions", shell]).ok().stdout;
        for word in ["daq", "doctor", "no-hardware", "mermaid"] {
            assert!(
                script.contains(word),
                "{word} is not in the completions for {shell}"
            );
        }
        let Some(program) = program(shell) else {
            daq_testkit::print_uncaptured(&format!(
                "skipped: {shell} is not installed, so its completions were not checked"
            ));
            continue;
        };
        let path = daq.write(&format!("completions.{shell}"), &script);
        let output = Command::new(program).arg("-n").arg(path).output().unwrap();
        assert!(
            output.status.success(),
            "{shell}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn doctor_reports_findings() {
    let daq = Daq::new("");
    let done = daq.cli(&["doctor"]);
    assert!([0, 69].contains(&done.code), "{}", done.stderr);
    assert_contains!(done.stdout =>
        "memlock", "hugepages", "rmem_max", "netdev_max_backlog", "governor", "UDP buffer drops"
    );
    let done = daq.cli(&["doctor", "--json", "--sample", "0s"]);
    let findings = done.json();
    let findings = findings.as_array().unwrap();
    assert!(findings.len() > 5);
    for finding in findings {
        assert!(
            finding
                .as_object()
                .is_some_and(|finding| finding.len() >= 3),
            "{finding}"
        );
    }
}

#[test]
fn reference_pages_are_printed() {
    let daq = Daq::new("");
    let schema = daq.cli(&["reference"]).ok().json();
    assert!(schema["properties"]["source"].is_object(), "{schema:#}");
}

/// Memory of a process in addition to rings, kernels and sinks: the program itself (about 15 MiB in the dev profile),
/// the stacks of its threads, the HTTP server and the allocator. It does not depend on the sizes in the configuration.
const OVERHEAD: u64 = 64 << 20;

/// Returns a value of /proc/PID/status in bytes.
fn status(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

#[test]
fn run_memory_stays_within_plan() {
    // The rings are large, so that a ring missing in the plan's sum is detected.
    let text = r#"
        [source.adc]
        driver = "sim"
        samples = { type = "int16", rate = "64 MHz" }
        noise = 0.1
        ring = "raw"
        [ring.raw]
        slot = "1 MiB"
        slots = 96
        [kernel.floats]
        use = "convert"
        input = "raw"
        output = "floats"
        [ring.floats]
        slots = 96
        [kernel.spectrum]
        use = "power-spectrum"
        input = "floats"
        output = "spectra"
        [ring.spectra]
        [sink.drop]
        driver = "null"
        input = "floats"
        touch = true
        [sink.disk]
        driver = "file"
        input = "spectra"
        path = "out"
        buffer = "16 MiB"
        [http]
        listen = "127.0.0.1:0"
    "#;
    let daq = Daq::new(text);
    let plan = daq.cli(&["plan", "--json", "daq.toml"]).ok().json();
    let planned = plan["memory"].as_u64().unwrap();
    let rings: u64 = plan["rings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ring| ring["region_bytes"].as_u64().unwrap())
        .sum();
    assert!(rings >= (96 + 2 * 96) << 20 && planned > rings, "{plan:#}");
    let text = daq.cli(&["plan", "daq.toml"]).ok().stdout;
    assert!(
        text.lines()
            .any(|line| line.starts_with("total") && line.contains("memory")),
        "{text}"
    );

    let mut live = daq.spawn(&[]);
    // By then, every ring has wrapped around, so all of its memory is in use.
    live.wait_count("rings.raw.published", 200);
    live.wait_count("rings.floats.published", 200);
    live.wait_count("rings.spectra.published", 64);
    let max = status(live.pid(), "VmHWM:");
    assert!(
        max <= planned + OVERHEAD,
        "{max} bytes are in use, but {planned} were planned"
    );
    assert!(
        max >= rings,
        "the plan contains rings of {rings} bytes, but the process used at most {max} bytes"
    );
    let _ = live.stop();
}
