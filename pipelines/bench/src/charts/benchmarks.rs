//! Draws the tables of BENCHMARKS.md, and compares the drawings with the committed files; `DAQ_UPDATE=1` rewrites them.

use super::{Axis, Better, Ceiling, Chart, Form, Group, Line, Quantiles, Row, single};
use daq_core::units::ByteSize;
use std::path::PathBuf;

/// The folder of the drawings, below the repository.
const IMAGES: &str = "docs/src/images";

fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A table of BENCHMARKS.md.
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// BENCHMARKS.md.
struct Document(String);

impl Document {
    fn read() -> Self {
        Self(std::fs::read_to_string(repository().join("BENCHMARKS.md")).unwrap())
    }

    /// Returns the text below the heading `heading`, until the next heading.
    fn section(&self, heading: &str) -> &str {
        let start = format!("# {heading}\n");
        let (_, rest) = self
            .0
            .split_once(&start)
            .unwrap_or_else(|| panic!("no section {heading:?}"));
        rest.split("\n#").next().unwrap()
    }

    /// Returns the `n`-th table of a section.
    fn table(&self, heading: &str, n: usize) -> Table {
        let mut tables: Vec<Vec<Vec<String>>> = Vec::new();
        let mut is_table = false;
        for line in self.section(heading).lines() {
            let cells = line
                .strip_prefix('|')
                .and_then(|line| line.strip_suffix('|'));
            if let Some(cells) = cells {
                if !is_table {
                    tables.push(Vec::new());
                }
                let cells = cells.split('|').map(|cell| cell.trim().to_owned());
                tables.last_mut().unwrap().push(cells.collect());
            }
            is_table = cells.is_some();
        }
        let mut lines = tables.swap_remove(n).into_iter();
        let columns = lines.next().unwrap();
        Table {
            columns,
            rows: lines.skip(1).collect(),
        }
    }

    /// Returns the first number after `text` in a section.
    fn number(&self, heading: &str, text: &str) -> f64 {
        let section = self.section(heading).replace('\n', " ");
        let (_, rest) = section
            .split_once(text)
            .unwrap_or_else(|| panic!("no text {text:?}"));
        number(rest)
    }
}

/// Returns the number at the start of a cell; NaN if the cell starts with a text.
fn number(cell: &str) -> f64 {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let text = cell.trim_start().split(|c| !is_number(c)).next().unwrap();
    text.parse().unwrap_or(f64::NAN)
}

/// Returns the number of bytes at the start of a cell.
fn bytes(cell: &str) -> f64 {
    let words: Vec<_> = cell.split([' ', ':']).take(2).collect();
    let size: ByteSize = words.join(" ").parse().unwrap();
    size.0 as f64
}

impl Table {
    /// Returns the row whose first cell begins with `name`.
    fn row(&self, name: &str) -> &[String] {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row[0].starts_with(name));
        row.unwrap_or_else(|| panic!("no row {name:?}"))
    }

    /// Returns the index of the column whose name begins with `name`.
    fn column(&self, name: &str) -> usize {
        let mut columns = self.columns.iter();
        let column = columns.position(|column| column.starts_with(name));
        column.unwrap_or_else(|| panic!("no column {name:?}"))
    }

    /// Returns a line through the figures of a row. The columns are sizes. `high` is a row with 99th percentiles.
    fn line(&self, (name, is_own): (&str, bool), row: &str, high: Option<&str>) -> Line {
        let points = (1..self.columns.len()).map(|i| {
            let mut figure = single(number(&self.row(row)[i]));
            if let Some(high) = high {
                figure[1] = number(&self.row(high)[i]);
            }
            (bytes(&self.columns[i]), figure)
        });
        Line {
            name: name.to_owned(),
            is_own,
            points: points.collect(),
        }
    }

    /// Returns a line through the figures of a column. The first column is the size.
    fn down(&self, (name, is_own): (&str, bool), column: &str) -> Line {
        let column = self.column(column);
        let rows = self.rows.iter();
        Line {
            name: name.to_owned(),
            is_own,
            points: rows
                .map(|row| (bytes(&row[0]), single(number(&row[column]))))
                .collect(),
        }
    }
}

fn lines(title: &str, unit: &str, better: Better, label: &str, lines: Vec<Line>) -> Chart {
    Chart {
        title: title.to_owned(),
        unit: unit.to_owned(),
        better,
        form: Form::Lines {
            label: label.to_owned(),
            axis: Axis::Bytes,
            lines,
            ceilings: Vec::new(),
        },
    }
}

fn rows(title: &str, unit: &str, better: Better, groups: Vec<Group>) -> Chart {
    Chart {
        title: title.to_owned(),
        unit: unit.to_owned(),
        better,
        form: Form::Rows(groups),
    }
}

fn row(name: &str, is_own: bool, figure: Quantiles) -> Row {
    Row {
        name: name.to_owned(),
        is_own,
        figure,
    }
}

/// Returns a figure with its 99th percentile.
fn with_p99(p50: f64, p99: f64) -> Quantiles {
    let mut figure = single(p50);
    figure[1] = p99;
    figure
}

fn copies(document: &Document) -> Chart {
    let section = "Copies to and from a GPU";
    let table = document.table(section, 0);
    let drawn = vec![
        table.line(("daq", true), "daq, to the GPU, GB/s", None),
        table.line(
            ("batched copies of the driver", false),
            "the driver's batched copies",
            None,
        ),
        table.line(
            ("one copy per frame", false),
            "copy one frame, no wait",
            None,
        ),
        table.line(
            ("one copy per frame, with a wait", false),
            "copy one frame and wait",
            None,
        ),
    ];
    let title = "Copies from host memory to an H200";
    let mut chart = lines(title, "GB/s", Better::Higher, "frame size", drawn);
    let figure = document.number(section, "one plain copy of 64 MiB:");
    if let Form::Lines { ceilings, .. } = &mut chart.form {
        ceilings.push(Ceiling {
            name: "ceiling: one copy of 64\u{a0}MiB".to_owned(),
            figure,
        });
    }
    chart
}

/// Returns groups of a table whose first cells are sizes of packets. Each group has a row for each of `columns`.
fn by_packet<'a>(
    rows: impl Iterator<Item = &'a Vec<String>>,
    columns: &[(usize, &str, bool)],
) -> Vec<Group> {
    let groups = rows.map(|cells| Group {
        heading: format!("{}-byte packets", cells[0]),
        rows: columns
            .iter()
            .map(|(i, name, is_own)| {
                let is_sender = cells[*i].contains("sender limit");
                let limit = if is_sender {
                    " (limit of the sender)"
                } else {
                    ""
                };
                row(
                    &format!("{name}{limit}"),
                    *is_own,
                    single(number(&cells[*i])),
                )
            })
            .collect(),
    });
    groups.collect()
}

fn udp_receive(document: &Document, what: &str, title: &str, unit: &str, better: Better) -> Chart {
    let table = document.table("UDP receive with reassembly, compared with spead2", 0);
    let wanted = table.rows.iter().filter(|row| row[1].starts_with(what));
    let columns = [
        (table.column("daq"), "daq", true),
        (table.column("spead2"), "spead2", false),
    ];
    rows(title, unit, better, by_packet(wanted, &columns))
}

fn udp_send(document: &Document) -> Chart {
    let table = document.table("UDP send, compared with spead2", 0);
    let columns = [
        (table.column("daq, s per GB"), "daq", true),
        (
            table.column("daq, plain"),
            "daq without segmentation offload",
            false,
        ),
        (table.column("spead2, tuned"), "spead2, tuned", false),
        (table.column("spead2, defaults"), "spead2", false),
    ];
    let groups = by_packet(table.rows.iter(), &columns);
    rows(
        "CPU time to send UDP",
        "seconds per GB",
        Better::Lower,
        groups,
    )
}

fn doorbells(document: &Document) -> Chart {
    let table = document.table("Doorbell round trip", 0);
    let drawn = table.rows.iter().map(|cells| {
        let name = cells[0].replace('`', "");
        let is_doorbell = name.starts_with("in ");
        let name = if is_doorbell {
            format!("doorbell {name}")
        } else {
            name
        };
        row(
            &name,
            is_doorbell,
            with_p99(number(&cells[1]), number(&cells[2])),
        )
    });
    let groups = vec![Group {
        heading: String::new(),
        rows: drawn.collect(),
    }];
    rows(
        "From a CPU store to the answer of the GPU",
        "µs",
        Better::Lower,
        groups,
    )
}

fn frames(document: &Document) -> Chart {
    let table = document.table("Frame latency", 0);
    let drawn = vec![
        table.line(
            ("persistent kernel, one thread", true),
            "persistent kernel",
            Some("… p99"),
        ),
        table.line(
            ("persistent kernel, two threads", true),
            "… committed by another",
            None,
        ),
        table.line(
            ("copy + launch + synchronise", false),
            "copy + launch",
            None,
        ),
    ];
    lines(
        "From the commit of a frame to its result",
        "µs",
        Better::Lower,
        "frame size",
        drawn,
    )
}

fn fpga(document: &Document) -> Chart {
    let table = document.table("Emulated FPGA devices", 1);
    let line = |name: &str, is_own, first: &str| {
        let cells = table.row(first);
        let sizes = (1..table.columns.len()).step_by(3);
        Line {
            name: name.to_owned(),
            is_own,
            points: sizes
                .map(|i| {
                    let figure = with_p99(number(&cells[i]), number(&cells[i + 1]));
                    (bytes(&table.columns[i]), figure)
                })
                .collect(),
        }
    };
    let drawn = vec![
        line(
            "direct, the device rings the doorbell",
            true,
            "direct, the device",
        ),
        line(
            "direct, the CPU rings the doorbell",
            true,
            "direct, the CPU",
        ),
        line("staged, the CPU rings the doorbell", false, "staged"),
    ];
    let title = "From the last byte of an emulated FPGA to a persistent kernel";
    lines(title, "µs", Better::Lower, "frame size", drawn)
}

fn rdma(document: &Document) -> Chart {
    let table = document.table("RDMA with emulated NICs", 0);
    let drawn = vec![
        table.down(("ring to ring, host → host", true), "host → host"),
        table.down(("queue pair alone", false), "queue pair alone"),
        table.down(("ring to ring, GPU → GPU", true), "GPU → GPU"),
    ];
    lines(
        "RDMA with emulated NICs",
        "MB/s",
        Better::Higher,
        "message size",
        drawn,
    )
}

fn python(document: &Document) -> Chart {
    let table = document.table("GPU rings in other processes", 2);
    let [p50, p99] = ["to `frame`, p50", "p99"].map(|name| table.column(name));
    let drawn = table.rows.iter().map(|cells| {
        let name = format!("{} ring, {}", cells[0], cells[1].replace('`', ""));
        row(
            &name,
            true,
            with_p99(number(&cells[p50]), number(&cells[p99])),
        )
    });
    let groups = vec![Group {
        heading: String::new(),
        rows: drawn.collect(),
    }];
    rows(
        "From publication to frame in Python",
        "µs",
        Better::Lower,
        groups,
    )
}

/// Returns the names and the charts of all files.
fn charts() -> Vec<(&'static str, Chart)> {
    let document = Document::read();
    let receive = |what, title, unit, better| udp_receive(&document, what, title, unit, better);
    vec![
        ("copies", copies(&document)),
        (
            "udp-receive",
            receive(
                "loss-free",
                "Highest rate of UDP without loss",
                "Gbit/s",
                Better::Higher,
            ),
        ),
        (
            "udp-receive-cpu",
            receive(
                "CPU s per GB",
                "CPU time to receive UDP",
                "seconds per GB",
                Better::Lower,
            ),
        ),
        ("udp-send", udp_send(&document)),
        ("doorbells", doorbells(&document)),
        ("frame-latency", frames(&document)),
        ("fpga-latency", fpga(&document)),
        ("rdma", rdma(&document)),
        ("python-latency", python(&document)),
    ]
}

#[test]
fn charts_of_benchmarks_are_current() {
    let folder = repository().join(IMAGES);
    let drawn: Vec<_> = charts()
        .into_iter()
        .map(|(name, chart)| (format!("{name}.svg"), chart.file()))
        .collect();
    if std::env::var_os("DAQ_UPDATE").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, drawn) in &drawn {
            std::fs::write(folder.join(name), drawn).unwrap();
        }
    }
    let page = std::fs::read_to_string(repository().join("BENCHMARKS.md")).unwrap();
    for (name, drawn) in &drawn {
        let committed = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(
            committed == *drawn,
            "{IMAGES}/{name} differs from the table in BENCHMARKS.md; run this test once with DAQ_UPDATE=1"
        );
        let link = format!("({IMAGES}/{name})");
        assert!(
            page.contains(&link),
            "BENCHMARKS.md does not contain {link}"
        );
    }
}
