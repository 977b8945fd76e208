//! `daq wait-ready` waits until a pipeline of this user receives data.

use super::exit;
use super::ls::{no_sockets, socket_directories};
use clap::Args as ClapArgs;
use daq_core::units::{Span, deadline};
use daq_pipelines::attach::client::{Client, ClientError};
use daq_pipelines::attach::sockets;
use daq_pipelines::console::print_error;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Arguments of `daq wait-ready`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Name of the pipeline. Can be left out if one pipeline runs.
    #[arg(value_name = "PIPELINE")]
    pipeline: Option<String>,
    /// State directory of the pipeline, as given to `daq run`. Default: set by systemd or XDG variables.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Maximum time to wait. Then the exit code is 69.
    #[arg(long, value_name = "TIME", default_value = "30 s")]
    timeout: Span,
}

/// State of the wanted pipeline.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// The reason why the pipeline is not ready.
    NotReady(String),
    /// Several pipelines run, and none is named.
    Ambiguous(Vec<String>),
}

/// Waits, and returns the exit code.
pub(super) fn wait_ready(args: &Args) -> u8 {
    let directories = socket_directories(args.state_dir.as_deref());
    let end = deadline(args.timeout.0);
    loop {
        let (mut lists, mut refused) = (Vec::new(), None);
        for path in sockets(&directories) {
            match Client::connect(&path).and_then(|mut client| client.list()) {
                Ok(list) => lists.push(list),
                // A daemon that was killed leaves its socket.
                Err(ClientError::Killed { .. }) => {}
                Err(error) => refused = Some(error.to_string()),
            }
        }
        let why = match state(&lists, args.pipeline.as_deref()) {
            State::Ready => return 0,
            State::NotReady(why) => match refused {
                // The pipeline may be the one whose socket cannot be used, for example for lack of permission.
                Some(refused) => format!("{why}; {refused}"),
                None if lists.is_empty() => format!("{why}; {}", no_sockets(&directories)),
                None => why,
            },
            State::Ambiguous(names) => {
                print_error!(
                    "error: {} pipelines run: {}; name one of them",
                    names.len(),
                    names.join(", ")
                );
                return exit::USAGE;
            }
        };
        if Instant::now() >= end {
            print_error!("error: {why} ({})", args.timeout);
            return exit::UNAVAILABLE;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the state of the pipeline `wanted`, or of the only pipeline in `lists`.
fn state(lists: &[Value], wanted: Option<&str>) -> State {
    let name = |list: &Value| list["pipeline"].as_str().unwrap_or_default().to_owned();
    let found: Vec<_> = lists
        .iter()
        .filter(|list| wanted.is_none_or(|wanted| name(list) == wanted))
        .collect();
    match *found {
        [] => State::NotReady(match (wanted, lists) {
            (None, _) => "no pipeline is ready".to_owned(),
            (Some(wanted), []) => format!("no pipeline `{wanted}` runs"),
            (Some(wanted), others) => {
                let others: Vec<_> = others.iter().map(name).collect();
                format!(
                    "no pipeline `{wanted}` runs; the running pipelines are {}",
                    others.join(", ")
                )
            }
        }),
        [list] if list["ready"] == true => State::Ready,
        [list] => State::NotReady(format!("pipeline `{}` is not ready", name(list))),
        _ => State::Ambiguous(found.into_iter().map(name).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn wanted_pipeline_is_ready_or_the_reason_is_known() {
        let list = |name: &str, ready| json!({ "pipeline": name, "ready": ready });
        let (a, b) = (list("a", true), list("b", false));
        assert_eq!(state(std::slice::from_ref(&a), None), State::Ready);
        assert_eq!(state(&[a.clone(), b.clone()], Some("a")), State::Ready);
        let not = |why: &str| State::NotReady(why.to_owned());
        assert_eq!(
            state(std::slice::from_ref(&b), None),
            not("pipeline `b` is not ready")
        );
        assert_eq!(state(&[], None), not("no pipeline is ready"));
        assert_eq!(state(&[], Some("c")), not("no pipeline `c` runs"));
        assert_eq!(
            state(&[a.clone(), b.clone()], Some("c")),
            not("no pipeline `c` runs; the running pipelines are a, b")
        );
        let names = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(state(&[a, b], None), State::Ambiguous(names));
    }
}
