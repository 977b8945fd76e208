//! Shows lines on the terminal until the user quits.

use super::view::{Line, Tone};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text;
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum time until new numbers are shown.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The terminal in raw mode, with an alternate screen. Dropping it restores the terminal.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    has_colours: bool,
    /// Number of lines above the visible ones.
    above: usize,
    is_paused: bool,
    /// Set by a signal that must end the program.
    ended: Arc<AtomicBool>,
}

/// What the user requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Quit,
    Pause,
    /// Scroll by this number of lines.
    Scroll(isize),
    ScrollPages(isize),
    Nothing,
}

impl Screen {
    /// Switches the terminal to raw mode. A panic also restores it.
    pub(super) fn new(has_colours: bool) -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, ended.clone())?;
        }
        Ok(Self {
            terminal: ratatui::try_init()?,
            has_colours,
            above: 0,
            is_paused: false,
            ended,
        })
    }

    /// Shows the lines that `lines` returns for the width of the terminal, until the user quits.
    pub(super) fn run(&mut self, mut lines: impl FnMut(usize) -> Vec<Line>) -> io::Result<()> {
        let mut shown = Vec::new();
        loop {
            // The lines are also read during a pause, so that new numbers do not accumulate.
            let new = lines(usize::from(self.terminal.size()?.width));
            if !self.is_paused {
                shown = new;
            }
            let page = self.draw(&shown)?;
            if self.ended.load(Ordering::Acquire) {
                return Ok(());
            }
            if !wait_for_input()? {
                return Ok(());
            }
            while event::poll(Duration::ZERO)? {
                match command(&event::read()?) {
                    Command::Quit => return Ok(()),
                    Command::Pause => self.is_paused = !self.is_paused,
                    Command::Scroll(by) => self.above = self.above.saturating_add_signed(by),
                    Command::ScrollPages(by) => {
                        let by = by.saturating_mul(page.cast_signed());
                        self.above = self.above.saturating_add_signed(by);
                    }
                    Command::Nothing => {}
                }
            }
        }
    }

    /// Draws the visible lines and the help below them. Returns the number of visible lines.
    fn draw(&mut self, lines: &[Line]) -> io::Result<usize> {
        let (above, is_paused, has_colours) = (self.above, self.is_paused, self.has_colours);
        let (mut page, mut first) = (0, 0);
        self.terminal.draw(|frame| {
            (page, first) = draw(frame, lines, above, is_paused, has_colours);
        })?;
        self.above = first;
        Ok(page)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Waits until the terminal has input or [`POLL_INTERVAL`] has passed. Returns false if the terminal no longer exists.
///
/// crossterm would read the end of a terminal in an endless loop.
fn wait_for_input() -> io::Result<bool> {
    let terminal = io::stdin();
    let mut polled = [PollFd::new(&terminal, PollFlags::IN)];
    match rustix::event::poll(&mut polled, Timespec::try_from(POLL_INTERVAL).ok().as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(!polled[0].revents().intersects(gone))
}

/// Draws the lines from line `above` on. Returns the number of lines that fit, and the first visible line.
fn draw(
    frame: &mut Frame<'_>,
    lines: &[Line],
    above: usize,
    is_paused: bool,
    has_colours: bool,
) -> (usize, usize) {
    let area = frame.area();
    let page = usize::from(area.height.saturating_sub(1));
    let first = above.min(lines.len().saturating_sub(page));
    let rows = area.rows();
    for (line, row) in lines.iter().skip(first).take(page).zip(rows) {
        let pieces = line.iter();
        let pieces = pieces.map(|(text, tone)| text::Span::styled(text, style(*tone, has_colours)));
        frame.render_widget(pieces.collect::<text::Line<'_>>(), row);
    }
    let below = lines.len().saturating_sub(first + page);
    let mut help = " q quit   space pause   ↑↓ scroll".to_owned();
    if first > 0 || below > 0 {
        help.push_str(&format!("   {first} lines above, {below} below"));
    }
    if is_paused {
        help.push_str("   PAUSED");
    }
    let last = Rect {
        y: area.bottom().saturating_sub(1),
        height: area.height.min(1),
        ..area
    };
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let width = usize::from(area.width);
    frame.render_widget(
        text::Line::styled(format!("{help:<width$}"), reversed),
        last,
    );
    (page, first)
}

fn style(tone: Tone, has_colours: bool) -> Style {
    let style = Style::new();
    let coloured = |colour| {
        if has_colours { style.fg(colour) } else { style }
    };
    match tone {
        Tone::Normal => style,
        Tone::Title => style.add_modifier(Modifier::BOLD),
        Tone::Header | Tone::Dim => style.add_modifier(Modifier::DIM),
        Tone::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
        Tone::Warning => coloured(Color::Yellow).add_modifier(Modifier::BOLD),
    }
}

fn command(event: &Event) -> Command {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press | KeyEventKind::Repeat,
        ..
    }) = event
    else {
        // A resized terminal is drawn again anyway.
        return Command::Nothing;
    };
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Command::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Command::Quit,
        KeyCode::Char(' ' | 'p') => Command::Pause,
        KeyCode::Up | KeyCode::Char('k') => Command::Scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => Command::Scroll(1),
        KeyCode::PageUp => Command::ScrollPages(-1),
        KeyCode::PageDown => Command::ScrollPages(1),
        KeyCode::Home => Command::Scroll(isize::MIN),
        KeyCode::End => Command::Scroll(isize::MAX),
        _ => Command::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn lines(count: usize) -> Vec<Line> {
        let line = |i| {
            vec![
                (format!("line {i}"), Tone::Normal),
                (" lost 3".to_owned(), Tone::Bad),
            ]
        };
        (0..count).map(line).collect()
    }

    fn drawn(
        count: usize,
        above: usize,
        size: (u16, u16),
        colours: bool,
    ) -> (String, TestBackend, usize) {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        let mut first = 0;
        terminal
            .draw(|frame| first = draw(frame, &lines(count), above, false, colours).1)
            .unwrap();
        let backend = terminal.backend().clone();
        (backend.to_string(), backend, first)
    }

    #[test]
    fn lines_are_cut_and_scrolled() {
        let (text, _, first) = drawn(30, 5, (12, 4), true);
        assert_eq!(first, 5);
        assert!(
            text.contains("line 5 lost ") && !text.contains("line 8"),
            "{text}"
        );
        // The last page remains full.
        assert_eq!(drawn(30, usize::MAX, (60, 4), true).2, 27);
        assert_eq!(drawn(2, 9, (60, 10), true).2, 0);
        // A terminal without room for a line does not fail.
        drawn(3, 0, (1, 1), true);
    }

    #[test]
    fn losses_are_emphasised_without_colours_too() {
        let cell = |colours| drawn(1, 0, (20, 2), colours).1.buffer()[(8, 0)].clone();
        assert_eq!((cell(true).fg, cell(false).fg), (Color::Red, Color::Reset));
        assert!(cell(false).modifier.contains(Modifier::BOLD));
    }

    #[test]
    fn keys_are_understood() {
        let key = |code, modifiers| command(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('q'), none), Command::Quit);
        assert_eq!(
            key(KeyCode::Char('c'), KeyModifiers::CONTROL),
            Command::Quit
        );
        assert_eq!(key(KeyCode::Char('c'), none), Command::Nothing);
        assert_eq!(key(KeyCode::PageDown, none), Command::ScrollPages(1));
        assert_eq!(command(&Event::Resize(10, 10)), Command::Nothing);
    }
}
