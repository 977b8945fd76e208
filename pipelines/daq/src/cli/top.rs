//! `daq top` shows the state of running pipelines.

mod client;
mod model;
mod pattern;
mod screen;
mod view;

use super::ls::{socket_directories, unreadable};
use super::{exit, show};
use client::{Address, get};
use daq_core::units::Span;
use daq_pipelines::attach::client::Client;
use daq_pipelines::attach::sockets;
use daq_pipelines::console::print_error;
use model::{Answer, Daemon};
use pattern::Pattern;
use screen::Screen;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Shortest interval between requests.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Seconds of the history that are requested.
const PAST_SECONDS: u64 = 31;

/// Arguments of `daq top`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Addresses of the HTTP servers of daemons: HOST, HOST:PORT or http://HOST:PORT/. Default: those of the running pipelines
    /// that `daq ls` lists, or 127.0.0.1:9464 if there is none with [http].
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<Address>,
    /// State directory of the pipelines, as given to `daq run`. Default: set by systemd or XDG variables.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Time between updates.
    #[arg(long, value_name = "TIME", default_value = "1 s")]
    interval: Span,
    /// Show only sources, rings, readers, kernels and sinks whose names match. `*` matches any text, `?` any character.
    #[arg(long = "match", value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// Print the state once as plain text, after two requests. This is the default if stdout is not a terminal. The exit code
    /// is 69 if a daemon did not respond.
    #[arg(long)]
    once: bool,
    /// Do not use colours. This is the default if the environment variable `NO_COLOR` is set.
    #[arg(long)]
    no_colours: bool,
}

const AFTER_HELP: &str = "\
Keys:
  q, Esc, Ctrl-C   quit
  space            pause
  arrows, Page Up, Page Down, Home, End
                   scroll
Latencies are those of the last 10 to 20 s: at a ring from the arrival of a frame's first packet until the frame is
published, at a reader from then until the reader has finished the frame.";

/// A response of the daemon with this index.
type Update = (usize, Result<Answer, String>);

pub(super) fn top(args: &Args) -> u8 {
    let interval = args.interval.0.max(MIN_INTERVAL);
    let mut addresses = args.addresses.clone();
    if addresses.is_empty() {
        addresses = running(args.state_dir.as_deref());
        let directories = socket_directories(args.state_dir.as_deref());
        if let Some(why) = unreadable(&directories).filter(|_| addresses.is_empty()) {
            print_error!("error: {why}");
            return exit::UNAVAILABLE;
        }
    }
    if addresses.is_empty() {
        addresses.push(Address::default());
    }
    let names = addresses.iter().map(ToString::to_string);
    let mut daemons: Vec<_> = names.map(Daemon::new).collect();
    let updates = match request(addresses, interval) {
        Ok(updates) => updates,
        Err(error) => {
            print_error!("error: cannot start a thread: {error}; raise the limit (ulimit -u)");
            return exit::UNAVAILABLE;
        }
    };
    if args.once || !io::stdout().is_terminal() {
        return once(&mut daemons, &updates, &args.patterns);
    }
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let shown = Screen::new(!args.no_colours && !no_colour).and_then(|mut screen| {
        screen.run(|width| {
            for (i, answer) in updates.try_iter() {
                daemons[i].update(answer.map_err(|why| format!("{why}; trying again")));
            }
            view::lines(&daemons, &args.patterns, width)
        })
    });
    match shown {
        Ok(()) => 0,
        Err(error) => {
            print_error!(
                "error: cannot use the terminal: {error}; `daq top --once` prints plain text"
            );
            exit::IO
        }
    }
}

/// Returns the addresses of the HTTP servers of the running pipelines of this user.
fn running(state_dir: Option<&Path>) -> Vec<Address> {
    let sockets = sockets(&socket_directories(state_dir)).into_iter();
    let lists = sockets.filter_map(|path| {
        Client::connect(&path)
            .and_then(|mut client| client.list())
            .ok()
    });
    let addresses = lists.filter_map(|list| list["http"].as_str()?.parse().ok());
    addresses.collect()
}

/// Starts one thread per daemon that requests its state in intervals.
fn request(addresses: Vec<Address>, interval: Duration) -> io::Result<Receiver<Update>> {
    let (send, updates) = mpsc::channel();
    for (i, address) in addresses.into_iter().enumerate() {
        let send: Sender<Update> = send.clone();
        std::thread::Builder::new().spawn(move || {
            loop {
                let start = Instant::now();
                if send.send((i, ask(&address))).is_err() {
                    return;
                }
                std::thread::sleep(interval.saturating_sub(start.elapsed()));
            }
        })?;
    }
    Ok(updates)
}

fn ask(address: &Address) -> Result<Answer, String> {
    let status = get(address, "/status").map_err(|error| error.to_string())?;
    if !status["report"].is_object() {
        return Err("the answer is not that of daq: it has no report".to_owned());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = now
        .map_or(0, |now| now.as_secs())
        .saturating_sub(PAST_SECONDS);
    // The history only completes the picture.
    let history = get(address, &format!("/history?span=10m&since={since}"));
    Ok(Answer {
        status,
        history: history.unwrap_or_default(),
    })
}

/// Prints the state of all daemons when each of them has answered twice or failed.
fn once(daemons: &mut [Daemon], updates: &Receiver<Update>, patterns: &[Pattern]) -> u8 {
    let is_open = |daemon: &Daemon| !daemon.has_rates() && daemon.failure.is_none();
    while daemons.iter().any(is_open) {
        let Ok((i, answer)) = updates.recv() else {
            break;
        };
        daemons[i].update(answer);
    }
    let mut code = 0;
    for daemon in daemons.iter() {
        if let Some(why) = &daemon.failure {
            print_error!("error: {}: {why}", daemon.address);
            code = exit::UNAVAILABLE;
        }
    }
    if code != 0 {
        print_error!(
            "`daq ls` prints the addresses of running pipelines that have a section `[http]`; `daq top` shows only these"
        );
    }
    let is_up = daemons.iter().filter(|daemon| daemon.is_up());
    show(&view::plain(view::lines(is_up, patterns, usize::MAX))).max(code)
}

#[cfg(test)]
mod tests;
