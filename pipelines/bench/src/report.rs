//! Writes the tables of a benchmark and their charts as one HTML file, which needs no network and no script.

use super::{Benchmark, Table};
use crate::charts::{Chart, escape};
use daq_core::file;
use daq_core::units::format_datetime;
use daq_diagnostics::doctor::about;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Style sheet of the page.
const STYLE: &str = include_str!("report.css");
/// Number of characters of `2026-11-24T04:24:22`.
const SECONDS: usize = 19;

/// Errors of a report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    /// The directory of the file does not exist.
    #[error(
        "cannot write the report {}: the directory {} does not exist; create it: mkdir -p {}", path.display(), directory.display(), directory.display()
    )]
    NoDirectory {
        /// The file.
        path: PathBuf,
        /// Its directory.
        directory: PathBuf,
    },
    /// The path is not a file.
    #[error(
        "cannot write the report {}: the path is not a regular file; set --report to a file, for example --report bench.html", .0.display()
    )]
    NoFile(PathBuf),
    /// The file cannot be written.
    #[error(
        "cannot write the report {}: {error}; set --report to a file in a directory that you can write to", path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        error: io::Error,
    },
}

/// A report of a benchmark, written to a file at the end.
#[derive(Debug)]
pub(crate) struct Report {
    path: PathBuf,
    /// Name of the benchmark, and what it measures.
    name: &'static str,
    about: String,
    tables: Vec<Table>,
}

impl Report {
    /// Creates a report of `benchmark` in the file `path`. Checks that the file can be written, so that a long
    /// benchmark does not fail at its end.
    pub(crate) fn new(path: &Path, benchmark: &Benchmark) -> Result<Self, ReportError> {
        let report = Self {
            path: path.to_owned(),
            name: benchmark.name(),
            about: benchmark.about(),
            tables: Vec::new(),
        };
        let is_file = match std::fs::symlink_metadata(path) {
            Ok(found) => found.is_file(),
            Err(_) => path.file_name().is_some(),
        };
        if !is_file || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(ReportError::NoFile(path.to_owned()));
        }
        let directory = report.directory();
        if !directory.exists() {
            let path = path.to_owned();
            return Err(ReportError::NoDirectory { path, directory });
        }
        let temporary = report.temporary();
        let created = file::create(&temporary).and_then(|_| std::fs::remove_file(&temporary));
        created.map_err(|error| report.failed(error))?;
        Ok(report)
    }

    /// Adds a table with its charts.
    pub(crate) fn add(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Replaces the file. `failure` is the error that ended the benchmark early. Keeps an existing file if a benchmark
    /// failed before its first table.
    pub(crate) fn write(&self, failure: Option<&str>) -> Result<(), ReportError> {
        if self.tables.is_empty() && failure.is_some() {
            return Ok(());
        }
        let html = self.html(&about(), failure);
        let written = file::replace(&self.path, &self.temporary(), html.as_bytes());
        written.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> ReportError {
        let path = self.path.clone();
        ReportError::Write { path, error }
    }

    /// Returns the directory of the file.
    fn directory(&self) -> PathBuf {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        }
    }

    /// Returns the path of the file while it is incomplete: in the same directory, so that it can be renamed.
    fn temporary(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        self.directory()
            .join(format!(".{name}.{}.tmp", std::process::id()))
    }

    /// Returns the page. `facts` describe the machine.
    fn html(&self, facts: &[(&'static str, String)], failure: Option<&str>) -> String {
        let title = escape(&format!("daq bench {}", self.name));
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n<p>{}.</p>\n",
            Chart::style(),
            escape(self.about.trim_end_matches('.')),
        );
        if let Some(failure) = failure {
            let _ = writeln!(
                html,
                "<p class=\"failure\"><strong>The benchmark ended early.</strong> {}</p>",
                escape(failure)
            );
        }
        let command = format!("<code>{}</code>", escape(&command_line()));
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let own = [("command", command), ("date", date()), ("daq", version)];
        let facts = facts.iter().map(|(name, value)| (*name, escape(value)));
        html += "<dl>\n";
        for (name, value) in own.into_iter().chain(facts) {
            let _ = writeln!(html, "<dt>{name}</dt><dd>{value}</dd>");
        }
        html += "</dl>\n";
        for (i, table) in self.tables.iter().enumerate() {
            html += &section(i + 1, table);
        }
        html + "</main>\n</body>\n</html>\n"
    }
}

/// Returns the charts of a table and the table. `number` distinguishes the tables of a page.
fn section(number: usize, table: &Table) -> String {
    let charts = table.charts();
    let heading = charts.first().map_or(table.title(), |chart| &chart.title);
    // A drawing shows its title, and a table without a drawing has its title as heading instead of a caption.
    let (of_heading, of_caption) = match charts {
        [] => ("", " class=\"unseen\""),
        _ => (" class=\"unseen\"", ""),
    };
    let mut html = format!("<section>\n<h2{of_heading}>{}</h2>\n", escape(heading));
    for (i, chart) in charts.iter().enumerate() {
        let id = format!("chart-{number}-{}", i + 1);
        let _ = write!(html, "<figure>\n{}</figure>\n", chart.part(&id));
    }
    // A table wider than the window is scrolled, also with the keyboard.
    let _ = write!(
        html,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"Table: {}\">\n{}</div>\n</section>\n",
        escape(heading),
        table.html(of_caption)
    );
    html
}

/// Returns the command line of this process, with quotes where a shell needs them.
fn command_line() -> String {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let words = std::iter::once(program.to_owned()).chain(words);
    let words = words.map(|word| quoted(&word.to_string_lossy()));
    words.collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Returns the current time in UTC.
fn date() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(0));
    format_datetime(now)[..SECONDS].replace('T', " ") + " UTC"
}

#[cfg(test)]
mod tests {
    use super::super::plot::Plot;
    use super::super::table::{Cell, size};
    use super::*;
    use clap::Parser;
    use std::os::unix::fs::PermissionsExt as _;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(subcommand)]
        what: Benchmark,
    }

    fn benchmark() -> Benchmark {
        Cli::parse_from(["bench", "staging"]).what
    }

    fn table() -> Table {
        let mut table = Table::new("rates of <engine>", "method | frame | GB/s");
        table.row(vec!["a & b".into(), size(8192), Cell::Number(3.0, 2)]);
        table.row(vec!["a & b".into(), size(65536), Cell::Number(4.0, 2)]);
        let plot = Plot::rates("Rates", "GB/s").over("frame", "frame size");
        table.with(&plot.by(&["method"], "GB/s"))
    }

    #[test]
    fn page_has_tables_charts_facts_and_no_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.html");
        let mut report = Report::new(&path, &benchmark()).unwrap();
        report.write(Some("no GPU")).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        report.add(table());
        report.write(Some("the GPU <failed>")).unwrap();
        let html = std::fs::read_to_string(&path).unwrap();
        for part in [
            "<h1>daq bench staging</h1>",
            "<p>Compare the copy engine thread",
            "<caption>rates of &lt;engine&gt;</caption>",
            "<h2 class=\"unseen\">Rates</h2>",
            "<th scope=\"row\">a &amp; b</th>",
            "<td class=\"number\">8 KiB</td>",
            "the GPU &lt;failed&gt;",
            "<dt>Linux</dt>",
            "id=\"chart-1-1-title\"",
        ] {
            assert!(html.contains(part), "{part}\n{html}");
        }
        let html = html.replace("http://www.w3.org/2000/svg", "");
        for absent in ["http:", "https:", "<script", "src=", "url(", "@import"] {
            assert!(!html.contains(absent), "{absent}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn unusable_path_is_reported_before_the_measurement() {
        let dir = tempfile::tempdir().unwrap();
        let failure = |path: &Path| Report::new(path, &benchmark()).unwrap_err().to_string();
        let text = failure(&dir.path().join("no/out.html"));
        assert!(text.contains("mkdir -p") && text.contains("/no"), "{text}");
        for path in [dir.path(), Path::new("/dev/null"), Path::new("out.html/")] {
            let text = failure(path);
            assert!(text.contains("not a regular file"), "{text}");
        }
        let locked = dir.path().join("locked");
        std::fs::create_dir(&locked).unwrap();
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o500)).unwrap();
        // The superuser may write anyway.
        if let Err(error) = Report::new(&locked.join("out.html"), &benchmark()) {
            let text = error.to_string();
            assert!(
                text.contains("ermission denied") && text.contains("--report"),
                "{text}"
            );
        }
    }

    #[test]
    fn words_are_quoted_for_shells() {
        assert_eq!(quoted("--frames=64KiB,1MiB"), "--frames=64KiB,1MiB");
        assert_eq!(quoted("8 KiB"), "'8 KiB'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
        assert!(date().ends_with(" UTC"), "{}", date());
    }
}
