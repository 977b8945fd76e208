//! Measures and wraps texts, and formats numbers.

/// Returns an estimate of the width of `text` in a font of `size` pixels. The widths are those of a wide font, because
/// the reader's font is not known.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let ems = text.chars().map(|letter| match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '\'' | ' ' | '\u{a0}'
        | '\u{202f}' => 0.33,
        'f' | 'r' | 't' | '(' | ')' | '/' | '-' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '→' | '+' | '÷' | '×' => 0.93,
        'A'..='Z' => 0.72,
        _ => 0.63,
    });
    ems.sum::<f64>() * size
}

/// Bold letters are wider by this factor.
pub(super) const BOLD: f64 = 1.13;

/// Breaks `text` between words into lines of at most `max` pixels. A longer word has a line of its own.
pub(super) fn wrap(text: &str, size: f64, max: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size) <= max => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Formats a number with three significant digits; integers of more digits are not rounded. A dash stands for NaN.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number of decimals is between 0 and 12"
)]
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (2.0 - value.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    let text = format!("{value:.decimals$}");
    let text = match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    };
    group(&text)
}

/// Separates thousands of integers of more than four digits.
fn group(text: &str) -> String {
    if text.len() < 5 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    let mut grouped = String::new();
    for (i, digit) in text.chars().enumerate() {
        if i > 0 && (text.len() - i).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        let cases = [
            (0.0, "0"),
            (0.0301, "0.0301"),
            (1.0, "1"),
            (1.486, "1.49"),
            (54.6, "54.6"),
            (5504.3, "5504"),
            (10_000.0, "10\u{202f}000"),
            (2_131_445.0, "2\u{202f}131\u{202f}445"),
            (f64::NAN, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn lines_break_between_words() {
        let text = "copy + launch + synchronise";
        assert_eq!(wrap(text, 10.0, 1000.0), [text]);
        let lines = wrap(text, 10.0, 100.0);
        assert_eq!(lines.join(" "), text);
        assert!(lines.len() > 1 && lines.iter().all(|line| width(line, 10.0) <= 100.0));
        assert_eq!(wrap("synchronise", 10.0, 5.0), ["synchronise"]);
    }
}
