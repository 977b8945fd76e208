//! The live block at the bottom of a terminal.

/// The live block that a terminal currently shows.
#[derive(Debug, Default)]
pub(super) struct Screen {
    block: Vec<String>,
    /// Width of each drawn line, in columns.
    drawn: Vec<usize>,
}

impl Screen {
    /// Returns the text that erases the drawn live block, then writes `messages` and the live block below them. `block`
    /// is the new live block, if it has changed. `size` is the terminal's number of columns and rows.
    pub(super) fn compose(
        &mut self,
        messages: &[u8],
        block: Option<Vec<String>>,
        size: (u16, u16),
    ) -> Vec<u8> {
        let (columns, rows) = (usize::from(size.0), usize::from(size.1));
        let mut text = Vec::new();
        if !self.drawn.is_empty() {
            // If the terminal has become narrower since, it has wrapped the drawn lines.
            let up: usize = self
                .drawn
                .iter()
                .map(|drawn| drawn.div_ceil(columns.max(1)).max(1))
                .sum();
            text.extend_from_slice(format!("\x1b[{up}A\r\x1b[J").as_bytes());
            self.drawn.clear();
        }
        text.extend_from_slice(messages);
        if let Some(block) = block {
            self.block = block;
        }
        // A block that fills the whole screen would scroll and could not be erased.
        for line in self.block.iter().take(rows.saturating_sub(1)) {
            let shown = fitted(line, columns.saturating_sub(1));
            self.drawn.push(shown.chars().count());
            text.extend_from_slice(shown.as_bytes());
            text.push(b'\n');
        }
        text
    }
}

/// Returns `line`, shortened to `columns` characters. A shorter line ends after a whole column of the table or, if that is not
/// possible, after a whole word, so that no number loses digits.
fn fitted(line: &str, columns: usize) -> String {
    let all: Vec<char> = line.chars().collect();
    if all.len() <= columns {
        return line.to_owned();
    }
    // Leave room for the ellipsis.
    let room = columns.saturating_sub(2);
    let is_end = |i: &usize| all[*i] == ' ';
    let is_column = |i: &usize| {
        let is_after_comma = i.checked_sub(1).is_some_and(|i| all[i] == ',');
        is_end(i) && (matches!(all[i + 1], ' ' | '(') || is_after_comma)
    };
    // Shorter lines would omit too much.
    let column = (room * 3 / 4..=room).rev().find(is_column);
    match column.or_else(|| (1..=room).rev().find(is_end)) {
        Some(end) => {
            let text: String = all[..end].iter().collect();
            format!("{} …", text.trim_end_matches([' ', ',']))
        }
        None => all[..columns].iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compose(screen: &mut Screen, log: &str, block: Option<&[&str]>, size: (u16, u16)) -> String {
        let block = block.map(|lines| lines.iter().map(|line| (*line).to_owned()).collect());
        String::from_utf8(screen.compose(log.as_bytes(), block, size)).unwrap()
    }

    #[test]
    fn messages_are_written_above_the_block() {
        let mut screen = Screen::default();
        let size = (80, 24);
        assert_eq!(compose(&mut screen, "a\n", None, size), "a\n");
        assert_eq!(
            compose(&mut screen, "", Some(&["one", "two"]), size),
            "one\ntwo\n"
        );
        assert_eq!(
            compose(&mut screen, "b\n", None, size),
            "\x1b[2A\r\x1b[Jb\none\ntwo\n"
        );
        assert_eq!(
            compose(&mut screen, "c\n", Some(&["three"]), size),
            "\x1b[2A\r\x1b[Jc\nthree\n"
        );
        assert_eq!(compose(&mut screen, "", Some(&[]), size), "\x1b[1A\r\x1b[J");
        assert_eq!(compose(&mut screen, "d\n", None, size), "d\n");
    }

    #[test]
    fn block_larger_than_terminal_is_truncated() {
        let mut screen = Screen::default();
        let block = Some(&["·123456789", "b", "c"][..]);
        assert_eq!(compose(&mut screen, "", block, (6, 3)), "·1234\nb\n");
    }

    #[test]
    fn line_ends_before_a_number_that_does_not_fit() {
        let line =
            "source adc  1.5 Gbit/s  188k packets/s  lost 12 of 345678 packets (late 12), epochs 2";
        assert_eq!(fitted(line, 100), line);
        for (columns, shown) in [
            (
                80,
                "source adc  1.5 Gbit/s  188k packets/s  lost 12 of 345678 packets (late 12) …",
            ),
            (
                70,
                "source adc  1.5 Gbit/s  188k packets/s  lost 12 of 345678 packets …",
            ),
            (
                62,
                "source adc  1.5 Gbit/s  188k packets/s  lost 12 of 345678 …",
            ),
            (50, "source adc  1.5 Gbit/s  188k packets/s …"),
        ] {
            assert_eq!(fitted(line, columns), shown);
        }
        assert_eq!(fitted("one two three", 9), "one two …");
        assert_eq!(fitted("123456789", 4), "1234");
        assert_eq!(fitted("ab", 0), "");
    }

    #[test]
    fn block_on_narrowed_terminal_is_erased_completely() {
        let mut screen = Screen::default();
        let block = Some(&["123456789", "b"][..]);
        compose(&mut screen, "", block, (80, 24));
        assert_eq!(
            compose(&mut screen, "", None, (4, 24)),
            "\x1b[4A\r\x1b[J123\nb\n"
        );
    }
}
