//! Checks the documents: links have a target, configurations are valid, commands exist, and tutorials run.

use daq_testkit::{Daq, Python, assert_counts, binary, program, python, repository, skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use toml::{Table, Value};

/// Returns the README, the guides in the repository's root, and all pages of the book.
fn pages() -> Vec<PathBuf> {
    let root = repository();
    let mut pages: Vec<_> = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "BENCHMARKS.md",
    ]
    .map(|name| root.join(name))
    .to_vec();
    let mut folders = vec![root.join("docs/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Returns the language and the text of each code block of a page.
pub(crate) fn blocks(page: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, block))) => *block += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the file name in the first line of a block, such as `# send.py` or `// clip.cu`.
pub(crate) fn file_name(block: &str) -> Option<&str> {
    let line = block.lines().next()?;
    let name = line.strip_prefix("# ").or(line.strip_prefix("// "))?;
    (name.contains('.') && !name.contains(' ') && !name.ends_with('.')).then_some(name)
}

/// Creates a directory with all files that a page contains, and the kernels of the examples.
pub(crate) fn directory(page: &Path) -> Daq {
    let daq = Daq::new("");
    for code in daq_testkit::files(&repository().join("configs/kernels"), ".cu") {
        let name = format!("configs/kernels/{}", code.file_name().unwrap().display());
        daq.write(&name, &std::fs::read_to_string(&code).unwrap());
    }
    for (_, block) in blocks(page) {
        if let Some(name) = file_name(&block) {
            daq.write(name, &block);
        }
    }
    daq
}

/// Adds the keys of `part` to `whole`. A table that names a driver or a kind replaces the existing table.
fn merge(whole: &mut Table, part: Table) {
    for (key, value) in part {
        match (whole.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new))
                if !["driver", "kind", "use", "file"]
                    .iter()
                    .any(|tag| new.contains_key(*tag)) =>
            {
                merge(old, new);
            }
            (_, value) => {
                whole.insert(key, value);
            }
        }
    }
}

/// Checks that every TOML block is a valid configuration. A block without a source and a sink changes the block before
/// it.
#[test]
fn configurations_in_documents_are_valid() {
    for page in pages() {
        if page.ends_with("reference/config.md") {
            continue; // the generated page has blocks that are not complete configurations
        }
        let daq = directory(&page);
        let mut whole = Table::new();
        for (_, block) in blocks(&page)
            .into_iter()
            .filter(|(language, _)| language == "toml")
        {
            let part: Table =
                toml::from_str(&block).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
            let mut config = part.clone();
            if part.contains_key("source")
                && (part.contains_key("sink") || part.contains_key("ring"))
            {
                whole = part;
            } else {
                config = whole.clone();
                merge(&mut config, part);
            }
            daq.write("block.toml", &toml::to_string(&config).unwrap());
            let done = daq.cli(&["check", "--no-hardware", "block.toml"]);
            assert_eq!(done.code, 0, "{}:\n{block}{}", page.display(), done.stderr);
        }
    }
}

/// Returns the words of each `daq` command in a page, without shell comments.
fn commands(page: &Path) -> Vec<Vec<String>> {
    let shell = blocks(page)
        .into_iter()
        .filter(|(language, _)| language == "sh");
    let lines = shell.flat_map(|(_, block)| {
        let joined = block.replace("\\\n", " ");
        joined.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines
        .filter_map(|line| {
            let line = line
                .split(" #")
                .next()?
                .trim()
                .strip_prefix("daq ")?
                .to_owned();
            Some(line.split_whitespace().map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn commands_in_documents_exist() {
    let daq = Daq::new("");
    for page in pages() {
        for words in commands(&page) {
            let mut path = vec![words[0].as_str()];
            if ["bench", "selftest", "emulate"].contains(&path[0]) {
                path.push(&words[1]);
            }
            let help = daq.cli(&[&path[..], &["--help"]].concat());
            let line = words.join(" ");
            assert_eq!(
                help.code,
                0,
                "{}: daq {line}\n{}",
                page.display(),
                help.stderr
            );
            let options = words.iter().filter(|word| word.starts_with("--"));
            for option in options.filter_map(|word| word.split('=').next()) {
                let known = help
                    .stdout
                    .split([' ', '\n', ','])
                    .any(|word| word == option);
                assert!(
                    known,
                    "{}: daq {line}: the help does not contain {option}",
                    page.display()
                );
            }
        }
    }
}

#[test]
fn links_in_documents_have_targets() {
    let mut linked = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = link.split('#').next().unwrap();
            if file.is_empty() || link.contains("://") {
                continue;
            }
            let target = page.parent().unwrap().join(file);
            assert!(target.exists(), "{}: {link}", page.display());
            if page.ends_with("SUMMARY.md") {
                linked.push(target.canonicalize().unwrap());
            }
        }
    }
    for page in pages()
        .iter()
        .filter(|page| page.starts_with(repository().join("docs")))
    {
        let page = page.canonicalize().unwrap();
        let listed = linked.contains(&page) || page.ends_with("SUMMARY.md");
        assert!(listed, "{} is not in SUMMARY.md", page.display());
    }
}

/// Returns the words of a page that are in backticks.
fn code_words(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    text.lines()
        .filter(|line| !line.starts_with("```"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

#[test]
fn files_in_documents_exist() {
    let folders = [
        "daq-core/",
        "drivers/",
        "sinks/",
        "pipelines/",
        "configs/",
        "kmod/",
        "docs/",
        "tests/",
    ];
    for page in pages() {
        for word in code_words(&page) {
            let is_path = folders.iter().any(|folder| word.starts_with(folder));
            if is_path && !word.contains([' ', '*', '{']) && !word.contains("NAME") {
                assert!(
                    repository().join(&word).exists(),
                    "{}: {word}",
                    page.display()
                );
            }
        }
    }
}

#[test]
fn metrics_in_documents_exist() {
    let metrics = repository().join("docs/src/reference/metrics.md");
    let known = std::fs::read_to_string(metrics).unwrap();
    let rules =
        std::fs::read_to_string(repository().join("configs/prometheus/alerts.yml")).unwrap();
    let in_rules = rules
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map(str::to_owned);
    let in_pages = pages().into_iter().flat_map(|page| code_words(&page));
    let endings = [
        "_total",
        "_packets",
        "_frames",
        "_slots",
        "_seconds",
        "_silent",
        "_full",
        "_path_state",
        "_violations",
    ];
    for word in in_pages.chain(in_rules) {
        let name = word.split('{').next().unwrap();
        if name.starts_with("daq_") && endings.iter().any(|ending| name.ends_with(ending)) {
            assert!(
                known.contains(&format!("## {name}\n")),
                "{name} is not a metric"
            );
        }
    }
}

/// The first table of a packet's path lists the files that the sections below it name. `DAQ_UPDATE=1` rewrites the table.
#[test]
fn files_on_the_path_of_a_packet_are_listed() {
    let path = repository().join("docs/src/concepts/way-of-a-packet.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let head = "| step | files |\n|---|---|\n";
    let (before, rest) = page.split_once(head).unwrap();
    let end = rest.find("\n\n").unwrap() + 1;
    let (listed, after) = rest.split_at(end);
    let steps = [
        "socket",
        "header",
        "reorder window",
        "ring",
        "kernel",
        "sink",
    ];
    let sections = after.split("\n## ").skip(1);
    let rows = sections.filter_map(|section| {
        let (title, text) = section.split_once('\n')?;
        let step = steps.iter().find(|step| {
            title.ends_with(*step)
                || title.ends_with(&format!("{}{}", step[..1].to_uppercase(), &step[1..]))
        })?;
        Some(format!("| {step} | {} |\n", source_files(text).join(", ")))
    });
    let table: String = rows.collect();
    assert_eq!(table.lines().count(), steps.len(), "{table}");
    if std::env::var_os("DAQ_UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{head}{table}{after}")).unwrap();
    } else {
        assert_eq!(listed, table, "run this test with DAQ_UPDATE=1");
    }
}

/// Returns the source files in the tables of a section, or the first file that its text names, each once and in backticks.
fn source_files(section: &str) -> Vec<String> {
    let is_file = |text: &&str| {
        std::path::Path::new(text)
            .extension()
            .is_some_and(|end| end == "rs")
            && text.contains('/')
    };
    let in_table = |line: &&str| line.starts_with('|');
    let files = section
        .lines()
        .filter(in_table)
        .filter_map(|line| line.split('|').nth(2));
    let mut files: Vec<&str> = files
        .map(|cell| cell.trim().trim_matches('`'))
        .filter(is_file)
        .collect();
    if files.is_empty() {
        files.extend(section.split('`').find(is_file));
    }
    let mut known = std::collections::BTreeSet::new();
    files.retain(|file| known.insert(*file));
    files.into_iter().map(|file| format!("`{file}`")).collect()
}

/// The tables of a packet's path name functions with the files that contain them.
#[test]
fn functions_on_the_path_of_a_packet_exist() {
    let page = repository().join("docs/src/concepts/way-of-a-packet.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut checked = 0;
    for line in page.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, _, file, functions, _] = cells[..] else {
            continue;
        };
        let file = file.trim_matches('`');
        if std::path::Path::new(file)
            .extension()
            .is_none_or(|extension| extension != "rs")
        {
            continue;
        }
        let code = std::fs::read_to_string(repository().join(file)).unwrap();
        for name in functions
            .split('`')
            .filter_map(|text| text.split_once("::"))
        {
            let function = format!("fn {}", name.1);
            let is_there = |line: &str| {
                let after = line.split_once(&function).map(|(_, after)| after);
                after.is_some_and(|after| after.starts_with(['(', '<']))
            };
            assert!(code.lines().any(is_there), "{file} has no `{function}`");
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked}");
}

#[test]
fn readme_shows_raw_packet_example() {
    let read = |name: &str| std::fs::read_to_string(repository().join(name)).unwrap();
    let config = read("configs/raw.toml");
    let example = &config[config.find("[source").unwrap()..];
    assert!(
        read("README.md").contains(example),
        "the configuration in README.md differs from configs/raw.toml"
    );
}

#[test]
fn raw_packet_example_counts_missing_packet() {
    let python = python!("socket");
    let daq = Daq::new(&std::fs::read_to_string(repository().join("configs/raw.toml")).unwrap());
    let port = daq_testkit::free_udp_port().to_string();
    let listen = format!("source.detector.listen=127.0.0.1:{port}");
    let mut live = daq.spawn(&["--set", &listen, "--set", "http.listen=127.0.0.1:0"]);
    live.wait_ready();
    let sender = std::fs::read_to_string(repository().join("configs/send_raw.py")).unwrap();
    let arguments = ["--port", &port, "--packets", "640", "--skip", "70"];
    let _ = python.run(&sender, &arguments);
    live.wait_count("sources.detector.delivered", 512);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.detector" => expected: 640, lost.wire_gap: 1);
}

/// Runs the shell blocks of a tutorial as one script, in a directory with the files of the tutorial.
fn run_tutorial(name: &str, python: Option<&Python>) {
    let page = repository().join(format!("docs/src/tutorials/{name}.md"));
    let daq = directory(&page);
    let shell = blocks(&page)
        .into_iter()
        .filter(|(language, _)| language == "sh");
    let script: String = shell.map(|(_, block)| block).collect();
    // If a command fails, the background commands must end with the script.
    let script = format!("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}");
    std::fs::create_dir(daq.path("bin")).unwrap();
    std::os::unix::fs::symlink(binary(), daq.path("bin/daq")).unwrap();
    let mut path = vec![daq.path("bin")];
    path.extend(python.map(|python| python.path().parent().unwrap().to_owned()));
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let daq = daq.env(
        "PATH",
        std::env::join_paths(path).unwrap().to_str().unwrap(),
    );
    let output = daq
        .prepare(Command::new("timeout").args(["300", "bash", "-euo", "pipefail", "-c", &script]))
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{name}: {}\n{text}", output.status);
}

#[test]
fn tutorial_spead_to_zarr_runs() {
    match Python::with(&["numpy", "spead2", "zarr", "matplotlib"]) {
        Ok(python) => run_tutorial("spead-to-zarr", Some(&python)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn tutorial_raw_udp_runs() {
    match Python::with(&["numpy"]) {
        Ok(python) => run_tutorial("raw-udp", Some(&python)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn tutorial_replay_runs() {
    if program("tcpdump").is_none() || !rustix::process::geteuid().is_root() {
        skip!("the tutorial records packets, which needs tcpdump and root");
    }
    match Python::with(&["zarr"]) {
        Ok(python) => run_tutorial("replay", Some(&python)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn tutorial_own_kernel_is_valid() {
    run_tutorial("own-kernel", None);
}

#[test]
fn tutorial_emulated_fpga_runs() {
    run_tutorial("emulated-fpga", None);
}
