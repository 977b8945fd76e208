//! What `daq top` shows, as lines of text with their emphasis. The terminal and the plain output show the same lines.

use super::model::{Component, Daemon};
use super::pattern::Pattern;
use daq_core::units::counted;
use daq_pipelines::report::{shown_rate, shown_scaled, shown_time};
use std::time::Duration;

/// Width of the bar of a ring, in characters.
const BAR: usize = 10;
/// Number of seconds in the picture of a source's rate.
const PAST: usize = 30;

/// The emphasis of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Normal,
    /// The name and the state of a daemon.
    Title,
    /// The titles of columns.
    Header,
    /// Data is missing, or something does not work.
    Bad,
    /// A reader that is about to lose frames or to block its ring.
    Warning,
    /// Less important than the rest.
    Dim,
}

/// A text with one emphasis.
pub(super) type Piece = (String, Tone);

/// The pieces of a line.
pub(super) type Line = Vec<Piece>;

/// Returns the lines for all daemons, each of at most `width` characters. Only components whose names match one of `patterns`
/// are shown, or all without patterns.
pub(super) fn lines<'a>(
    daemons: impl IntoIterator<Item = &'a Daemon>,
    patterns: &[Pattern],
    width: usize,
) -> Vec<Line> {
    let mut lines = Vec::new();
    for daemon in daemons {
        if !lines.is_empty() {
            lines.push(Line::new());
        }
        lines.push(title(daemon));
        for key in ["stalled", "silent"] {
            let prefix = if key == "stalled" {
                "no progress: "
            } else {
                ""
            };
            let sentences = daemon.list(key).into_iter();
            lines.extend(sentences.map(|text| vec![(format!("  {prefix}{text}"), Tone::Bad)]));
        }
        for table in [sources, rings, readers, kernels, sinks] {
            lines.extend(table(daemon, patterns).aligned(width));
        }
    }
    lines.into_iter().map(|line| fitted(line, width)).collect()
}

/// Returns `line`, shortened to `width` characters. A table is shortened after a whole column and a sentence after a whole
/// word, so that no number loses digits or its unit.
fn fitted(line: Line, width: usize) -> Line {
    let length = |text: &str| text.chars().count();
    if line.iter().map(|(text, _)| length(text)).sum::<usize>() <= width {
        return line;
    }
    // Leave room for the ellipsis.
    let mut room = width.saturating_sub(2);
    let is_table = line.len() > 2;
    let mut shown = Line::new();
    for (text, tone) in line {
        if length(&text) > room {
            if !is_table || tone == Tone::Header {
                shown.push((words(&text, room), tone));
            }
            break;
        }
        room -= length(&text);
        shown.push((text, tone));
    }
    shown.push((" …".chars().take(width).collect(), Tone::Dim));
    shown
}

/// Returns the words at the start of `text` that fit into `room` characters.
fn words(text: &str, room: usize) -> String {
    let ends = text.char_indices().filter(|(_, c)| *c == ' ');
    let ends = ends.map(|(end, _)| text[..end].trim_end());
    let fitting = ends.take_while(|text| text.chars().count() <= room);
    fitting.last().unwrap_or_default().to_owned()
}

/// Returns the lines as plain text.
pub(super) fn plain(lines: Vec<Line>) -> String {
    let mut text = String::new();
    for line in lines {
        let line: String = line.into_iter().map(|(text, _)| text).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn title(daemon: &Daemon) -> Line {
    let address = &daemon.address;
    match &daemon.failure {
        Some(why) => vec![
            (address.clone(), Tone::Title),
            (format!("  {why}"), Tone::Bad),
        ],
        None if !daemon.is_up() => vec![
            (address.clone(), Tone::Title),
            ("  waiting for the first answer".to_owned(), Tone::Dim),
        ],
        None => {
            let state = daemon.text("state");
            let tone = if state == "running" {
                Tone::Normal
            } else {
                Tone::Bad
            };
            let bytes = daemon
                .components("sources")
                .map(|source| source.rate("bytes"));
            let rate = bytes.sum::<Option<f64>>().filter(|_| daemon.has_rates());
            let rate =
                rate.map_or_else(String::new, |rate| format!("  {}", shown_rate(8.0 * rate)));
            vec![
                (daemon.text("name"), Tone::Title),
                (format!("  {state}"), tone),
                (
                    format!("{rate}  up {}", uptime(daemon.uptime())),
                    Tone::Normal,
                ),
                (
                    format!("  {address}  version {}", daemon.text("version")),
                    Tone::Dim,
                ),
            ]
        }
    }
}

fn uptime(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{} {hours} h", counted(days, "day")),
    }
}

/// Rows with columns of one width. The first row is the header; the last column is not padded.
struct Table {
    rows: Vec<Vec<Piece>>,
    /// Number of columns that are aligned to the left; the others, except the last, are aligned to the right.
    left: usize,
    /// Columns that are omitted on a narrow terminal, the first one first.
    optional: &'static [usize],
    /// Texts below rows, with the index of the row.
    notes: Vec<(usize, Piece)>,
}

impl Table {
    fn new(left: usize, titles: &[&str], optional: &'static [usize]) -> Self {
        let header = titles
            .iter()
            .map(|title| ((*title).to_owned(), Tone::Header));
        Self {
            rows: vec![header.collect()],
            left,
            optional,
            notes: Vec::new(),
        }
    }

    /// Adds a text below the last row.
    fn note(&mut self, (text, tone): Piece) {
        let note = (format!("    {text}"), tone);
        self.notes.push((self.rows.len() - 1, note));
    }

    /// Returns the lines; none without rows below the header. Omits optional columns until the others fit into `width`
    /// characters.
    fn aligned(self, width: usize) -> Vec<Line> {
        if self.rows.len() < 2 {
            return Vec::new();
        }
        let columns = self.rows[0].len();
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .map(|(text, _)| text.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width_of).collect();
        let mut total: usize = widths.iter().map(|width| width + 2).sum();
        let mut is_needed = |column: &&usize| {
            let is_too_wide = total > width;
            if is_too_wide {
                total -= widths[**column] + 2;
            }
            is_too_wide
        };
        let omitted: Vec<usize> = self
            .optional
            .iter()
            .take_while(&mut is_needed)
            .copied()
            .collect();
        let align = |(i, (text, tone)): (usize, Piece)| {
            let width = widths[i];
            let text = match i {
                _ if i + 1 == columns => format!("  {text}"),
                _ if i < self.left => format!("  {text:<width$}"),
                _ => format!("  {text:>width$}"),
            };
            (text, tone)
        };
        let mut notes = self.notes.into_iter().peekable();
        let mut lines = Vec::new();
        for (i, row) in self.rows.into_iter().enumerate() {
            let cells = row.into_iter().enumerate();
            let cells = cells.filter(|(column, _)| !omitted.contains(column));
            lines.push(cells.map(align).collect());
            while let Some((_, note)) = notes.next_if(|(row, _)| *row == i) {
                lines.push(vec![note]);
            }
        }
        lines
    }
}

/// Returns the components of a table that match the patterns.
fn matching<'a>(
    daemon: &'a Daemon,
    kind: &'static str,
    patterns: &'a [Pattern],
) -> impl Iterator<Item = Component<'a>> {
    let components = daemon.components(kind);
    components.filter(|component| {
        patterns.is_empty()
            || patterns
                .iter()
                .any(|pattern| pattern.matches(&component.name))
    })
}

fn normal(text: impl Into<String>) -> Piece {
    (text.into(), Tone::Normal)
}

/// Returns the number at `path`, emphasised if it is not 0.
fn fault(component: &Component<'_>, path: &str) -> Piece {
    match component.count(path) {
        0 => normal("0"),
        count => (count.to_string(), Tone::Bad),
    }
}

fn per_second(component: &Component<'_>, path: &str) -> Piece {
    normal(
        component
            .rate(path)
            .map_or_else(|| "–".to_owned(), shown_scaled),
    )
}

/// Returns a latency of the last seconds, or of the whole run if no frame was measured in the last seconds.
fn latency(component: &Component<'_>, quantile: &str) -> Piece {
    let recent = component.value(&format!("latency.recent_{quantile}_us"));
    let us = recent.or_else(|| component.value(&format!("latency.{quantile}_us")));
    let time = us.and_then(|us| Duration::try_from_secs_f64(us / 1e6).ok());
    normal(time.map_or_else(|| "–".to_owned(), shown_time))
}

fn sources(daemon: &Daemon, patterns: &[Pattern]) -> Table {
    let titles = ["SOURCE", "RATE", "PER S", "LOST", "REJECTED", "LAST 30 S"];
    let mut table = Table::new(1, &titles, &[5]);
    for source in matching(daemon, "sources", patterns) {
        let rate = source.rate("bytes");
        let rate = rate.map_or_else(|| "–".to_owned(), |bytes| shown_rate(8.0 * bytes));
        let is_silent = source.is_set("silent");
        let (sentence, is_loss) = daemon.sentence(&source);
        let tone = if is_loss || is_silent {
            Tone::Bad
        } else {
            Tone::Normal
        };
        table.rows.push(vec![
            normal(&source.name),
            normal(rate),
            per_second(&source, "delivered"),
            fault(&source, "lost"),
            fault(&source, "rejected"),
            (picture(&daemon.past(&source)), Tone::Dim),
        ]);
        table.note((sentence, tone));
    }
    table
}

/// Draws the last [`PAST`] numbers with one character each, relative to the largest.
fn picture(numbers: &[u64]) -> String {
    let numbers = &numbers[numbers.len().saturating_sub(PAST)..];
    let max = numbers.iter().copied().max().unwrap_or(0).max(1);
    let levels = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let level = |n: &u64| {
        let level = (u128::from(*n) * 8).div_ceil(u128::from(max));
        match usize::try_from(level).unwrap_or(8) {
            0 => '·',
            level => levels[level.min(8) - 1],
        }
    };
    numbers.iter().map(level).collect()
}

fn rings(daemon: &Daemon, patterns: &[Pattern]) -> Table {
    let titles = [
        "RING",
        "FILL",
        "FRAMES/S",
        "WAITING",
        "SLOTS",
        "MAX",
        "REFUSED",
        "NEWEST",
        "P50",
        "P99 FROM ARRIVAL",
    ];
    let mut table = Table::new(2, &titles, &[1, 5, 4, 7, 2, 8]);
    for ring in matching(daemon, "rings", patterns) {
        let capacity = ring.count("capacity").max(1);
        let readers = daemon.components("readers");
        let waiting = readers
            .filter(|reader| reader.text("ring") == ring.name && reader.value("process").is_none());
        let waiting = waiting.map(|reader| reader.count("pending")).max();
        let waiting = waiting.unwrap_or(0).min(capacity);
        let filled = usize::try_from((waiting * BAR as u64).div_ceil(capacity)).unwrap_or(BAR);
        let bar = (0..BAR).map(|i| if i < filled { '█' } else { '·' });
        let tone = if waiting * 5 > capacity * 4 {
            Tone::Warning
        } else {
            Tone::Normal
        };
        let newest = ring.value("newest_frame_age_ns");
        let newest = newest.and_then(|ns| Duration::try_from_secs_f64(ns / 1e9).ok());
        table.rows.push(vec![
            normal(&ring.name),
            (bar.collect(), tone),
            per_second(&ring, "published"),
            (waiting.to_string(), tone),
            normal(ring.count("capacity").to_string()),
            normal(ring.count("high_water").to_string()),
            fault(&ring, "ring_full"),
            normal(newest.map_or_else(|| "–".to_owned(), shown_time)),
            latency(&ring, "p50"),
            latency(&ring, "p99"),
        ]);
    }
    table
}

fn readers(daemon: &Daemon, patterns: &[Pattern]) -> Table {
    let titles = [
        "READER",
        "RING",
        "FRAMES/S",
        "LAG",
        "OVERRUN",
        "DISCARDED",
        "BLOCKED",
        "P50",
        "P99 FROM PUBLICATION",
    ];
    let mut table = Table::new(2, &titles, &[7, 2, 1, 5]);
    for reader in matching(daemon, "readers", patterns) {
        table.rows.push(vec![
            normal(&reader.name),
            normal(reader.text("ring")),
            per_second(&reader, "read"),
            normal(reader.count("pending").to_string()),
            fault(&reader, "overrun"),
            fault(&reader, "discarded"),
            fault(&reader, "blocked"),
            latency(&reader, "p50"),
            latency(&reader, "p99"),
        ]);
    }
    table
}

fn kernels(daemon: &Daemon, patterns: &[Pattern]) -> Table {
    let mut table = Table::new(1, &["KERNEL", "IN/S", "OUT/S", "FAILED", "GPU"], &[1]);
    for kernel in matching(daemon, "kernels", patterns) {
        let busy = kernel
            .rate("device.busy_ns")
            .filter(|_| kernel.count("device.launches") > 0);
        let gpu = match kernel.text("device.dispatch").as_str() {
            "" => "–".to_owned(),
            dispatch => busy.map_or_else(
                || dispatch.to_owned(),
                |ns| format!("{:.0} % busy", (ns / 1e7).min(100.0)),
            ),
        };
        table.rows.push(vec![
            normal(&kernel.name),
            per_second(&kernel, "in"),
            per_second(&kernel, "produced"),
            fault(&kernel, "failed"),
            normal(gpu),
        ]);
    }
    table
}

fn sinks(daemon: &Daemon, patterns: &[Pattern]) -> Table {
    let titles = [
        "SINK", "RATE", "FRAMES/S", "FILES", "DROPPED", "LOST", "STATE",
    ];
    let mut table = Table::new(1, &titles, &[3, 2]);
    for sink in matching(daemon, "sinks", patterns) {
        let rate = sink.rate("bytes");
        table.rows.push(vec![
            normal(&sink.name),
            normal(rate.map_or_else(|| "–".to_owned(), |bytes| shown_rate(8.0 * bytes))),
            per_second(&sink, "frames"),
            normal(sink.count("files").to_string()),
            fault(&sink, "dropped"),
            fault(&sink, "lost"),
            if sink.is_set("full") {
                ("accepts no frames".to_owned(), Tone::Bad)
            } else {
                normal("")
            },
        ]);
    }
    table
}
