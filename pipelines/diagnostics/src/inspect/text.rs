//! The report as text for terminals of 80 columns.

use super::{FlowReport, Report, Stream};
use daq_drivers::packet::recognise::{WIDTH, scaled, wrapped};
use std::fmt::{self, Write};

/// Maximum number of flows of one stream, and of sizes of one flow, that are listed.
const MAX_LISTED: usize = 8;

/// Maximum number of destinations without a format that are listed.
const MAX_UNKNOWN: usize = 3;

/// Writes `text` after `mark`, with the same indentation in all lines.
fn item(f: &mut fmt::Formatter<'_>, mark: &str, text: &str) -> fmt::Result {
    let indent = mark.chars().count();
    for (i, line) in wrapped(text, WIDTH - indent).iter().enumerate() {
        let start = if i == 0 { mark } else { "" };
        writeln!(f, "{start:indent$}{line}")?;
    }
    Ok(())
}

/// Returns a duration in readable form.
fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 1e-3 => format!("{:.2} ms", seconds * 1e3),
        seconds => format!("{:.1} us", seconds * 1e6),
    }
}

fn total(packets: u64, bytes: u64, seconds: Option<f64>) -> String {
    let mut text = format!(
        "{}, {}",
        daq_core::units::counted(packets, "packet"),
        scaled(bytes as f64, "B")
    );
    if let Some(seconds) = seconds {
        let _ = write!(text, " in {}", time(seconds));
    }
    text
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        item(
            f,
            "",
            &format!(
                "{}: {}",
                self.from,
                total(self.packets, self.bytes, self.seconds)
            ),
        )?;
        for note in &self.notes {
            item(f, "  note: ", note)?;
        }
        if let Some(hint) = self.hint {
            item(f, "  ", hint)?;
        }
        // The streams without a format are the last ones.
        let recognised = self
            .streams
            .iter()
            .filter(|stream| stream.format.is_some())
            .count();
        let shown = recognised + MAX_UNKNOWN;
        for (i, stream) in self.streams.iter().take(shown).enumerate() {
            writeln!(f)?;
            stream.write(f, i + 1)?;
        }
        let hidden = self.streams.get(shown..).unwrap_or_default();
        if !hidden.is_empty() {
            let packets: u64 = hidden.iter().map(Stream::packets).sum();
            let text = format!(
                "{} to other destinations were not recognised either; --port selects packets, --json lists all",
                daq_core::units::counted(packets, "packet")
            );
            writeln!(f)?;
            item(f, "", &text)?;
        }
        Ok(())
    }
}

impl Stream {
    fn write(&self, f: &mut fmt::Formatter<'_>, number: usize) -> fmt::Result {
        match &self.format {
            Some(format) => item(
                f,
                &format!("{number}. "),
                &format!("{} ({} % sure)", format.name, format.confidence),
            )?,
            None => writeln!(f, "{number}. nothing recognised")?,
        }
        for flow in self.flows.iter().take(MAX_LISTED) {
            flow.write(f)?;
        }
        if let Some(more) = self
            .flows
            .len()
            .checked_sub(MAX_LISTED)
            .filter(|more| *more > 0)
        {
            writeln!(f, "   and {}", daq_core::units::counted(more, "flow"))?;
        }
        if let Some(counts) = self.counts.as_ref().filter(|counts| counts.expected > 0) {
            let mut text = format!(
                "{} of {} lost, {}, {} reordered",
                counts.lost,
                daq_core::units::counted(counts.expected, "packet"),
                daq_core::units::counted(counts.duplicates, "duplicate"),
                counts.reordered
            );
            if counts.control > 0 {
                let _ = write!(text, ", {} without samples", counts.control);
            }
            if counts.restarts > 0 {
                let _ = write!(
                    text,
                    ", {}",
                    daq_core::units::counted(counts.restarts, "restart")
                );
            }
            item(f, "   numbers:   ", &text)?;
        }
        let format = self.format.iter();
        for (label, lines) in
            format.flat_map(|format| [("why:", &format.why), ("ambiguous:", &format.ambiguous)])
        {
            for (i, line) in lines.iter().enumerate() {
                let label = if i == 0 { label } else { "" };
                item(f, &format!("   {label:<10} "), line)?;
            }
        }
        if let Some(reason) = &self.no_section {
            item(f, "   no source: ", reason)?;
        }
        match &self.section {
            Some(section) => write!(
                f,
                "
{section}"
            ),
            None => Ok(()),
        }
    }
}

impl FlowReport {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "   {} -> {}", self.source, self.destination)?;
        item(f, "     ", &total(self.packets, self.bytes, self.seconds))?;
        if let (Some(packets), Some(bits)) = (self.packets_per_second, self.bits_per_second) {
            let longest = self.longest_gap.map(time).unwrap_or_default();
            let rate = format!(
                "{}, {}, gaps {} on average, at most {longest}",
                scaled(bits, "b/s"),
                scaled(packets, "packets/s"),
                time(1.0 / packets.max(1e-9))
            );
            item(f, "     ", &rate)?;
        }
        let sizes = self
            .sizes
            .iter()
            .take(MAX_LISTED)
            .map(|(size, count)| format!("{size} B ({count})"));
        let mut sizes: Vec<String> = sizes.collect();
        if let Some(more) = self
            .sizes
            .len()
            .checked_sub(MAX_LISTED)
            .filter(|more| *more > 0)
        {
            sizes.push(format!("{more} other sizes"));
        }
        item(f, "     sizes: ", &sizes.join(", "))
    }
}
