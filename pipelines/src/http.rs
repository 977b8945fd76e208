//! The HTTP server: metrics, probes, status and a small page. It runs on one thread outside the data path.
//!
//! | route | answer |
//! |---|---|
//! | `/`, `/page/…` | a page with the completeness of sources, samples of rings, the graph of the plan, and all ledgers |
//! | `/metrics` | Prometheus' text format 0.0.4 |
//! | `/-/healthy` | 200 while every data thread makes progress, else 503 and the names of the stalled threads |
//! | `/-/ready` | 200 if every source has started, none is silent (`silent_after`) and the pipeline does not drain;
//! else 503 and the reason |
//! | `/status` | one JSON object with the ledgers and the plan |
//! | `/rings/NAME/scope` | the newest frames of a ring, reduced to curves, until the client disconnects |
//! | `/rings/NAME/frame.npy` | the newest frame of a ring, or one that a browser shows, as a file |
//! | `/history` | the history of the ledgers: the last 10 minutes per second, or the last 24 hours per minute |
//!
//! Everything is read-only and served without authentication, so the default address is loopback. To serve other
//! machines, put an authenticating proxy in front. The server rejects requests for unknown host names. The number of
//! connections and their idle time are limited.

mod connections;
mod health;
mod host;
mod metrics;
mod page;
mod process;
mod reference;
mod routes;
mod scope;
mod table;

pub use health::Health;
pub use metrics::{Exposition, Ledgers, ReportFn};
pub use reference::reference;
pub use scope::{ScopedRing, TapBudget, max_memory};
pub(crate) use scope::{TapCalls, mark_hung};
pub use table::metrics;

use crate::history::History;
use connections::{Bounded, Limits};
use daq_core::config::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Time limit for requests in progress when the server stops.
const GRACE: Duration = Duration::from_secs(1);

/// The section `[http]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Address and port of the server for metrics, probes and status; port 0 selects any free port. Everyone who can
    /// connect can read all data, so use a loopback address, or put an authenticating proxy in front of the server.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Additional host names that the server accepts; default none. The server always accepts IP addresses, `localhost`
    /// and the names of this machine (its host name, alone and with the domains that `/etc/hosts` and
    /// `/etc/resolv.conf` give). Requests for other names are rejected, because web pages of other sites could read the
    /// answers through DNS rebinding.
    #[serde(default)]
    pub hosts: Vec<String>,
}

fn default_listen() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 9464))
}

impl Http {
    /// Returns the problems in the section that are not type errors.
    pub fn problems(&self) -> Vec<Problem> {
        host::problems(&self.hosts)
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: default_listen(),
            hosts: Vec::new(),
        }
    }
}

/// Returns the state of the data threads at the time of the call.
pub type HealthFn = Arc<dyn Fn() -> Health + Send + Sync>;

/// Data that the server exports. Both functions run on the server's thread for every request.
#[derive(Clone)]
pub struct HttpState {
    /// Name of the pipeline.
    pub name: String,
    /// Host names that the server accepts ([`Http::hosts`]), in addition to those of this machine.
    pub hosts: Vec<String>,
    /// Returns all current ledgers.
    pub report: ReportFn,
    /// Returns the current state of the data threads.
    pub health: HealthFn,
    /// The history of the ledgers.
    pub history: Arc<History>,
    /// The plan as `daq plan` shows it.
    pub plan: Value,
    /// The report of the last run, if that run ended uncleanly.
    pub last_run: Option<Value>,
    /// The rings that browsers can show, by name.
    pub rings: BTreeMap<String, ScopedRing>,
}

/// Errors that prevent the server from running.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address could not be bound.
    #[error("http: cannot listen on {listen}: {source}; {}", remedy(*listen, source))]
    Listen {
        /// The requested address.
        listen: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The thread or its runtime could not start.
    #[error(
        "http: cannot start the server's thread: {0}; raise the limits on threads and open files (ulimit -u and -n, \
         TasksMax= and LimitNOFILE=)"
    )]
    Thread(#[source] io::Error),
    /// The table of metrics is inconsistent.
    #[error("http: the table of metrics is invalid: {0}; this is a defect in daq")]
    Metrics(#[from] prometheus::Error),
}

/// Returns advice for an address that cannot be bound.
fn remedy(listen: SocketAddr, error: &io::Error) -> String {
    let port = listen.port();
    if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
        return "raise the limit on open files (ulimit -n, LimitNOFILE=)".to_owned();
    }
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another program uses this port (`ss -ltnp 'sport = :{port}'` shows which one); stop that program, or set \
             another port in `listen` of [http]"
        ),
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has this address; `ip addr` lists the addresses; change `listen` in [http]"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            format!("port {port} requires a privilege; set a port of at least 1024 in `listen` of [http]")
        }
        _ => "change `listen` in [http]".to_owned(),
    }
}

/// A running server. The server stops when this value is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Binds the address `listen`. Call this function early, so that an unavailable port is reported before a run starts.
///
/// # Errors
/// If the address cannot be bound.
pub fn bind(listen: SocketAddr) -> Result<TcpListener, HttpError> {
    let fail = |source| HttpError::Listen { listen, source };
    // The standard library sets SO_REUSEADDR, so that a restart need not wait for old connections.
    let listener = TcpListener::bind(listen).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// Serves `state` on `listen`. The port is bound when this function returns.
///
/// # Errors
/// If the address cannot be bound or the thread cannot start.
pub fn serve(listen: SocketAddr, state: HttpState) -> Result<Server, HttpError> {
    serve_on(bind(listen)?, state)
}

/// Serves `state` on a listener created by [`bind`].
///
/// # Errors
/// If the thread cannot start.
pub fn serve_on(listener: TcpListener, state: HttpState) -> Result<Server, HttpError> {
    serve_within(listener, state, Limits::of_process())
}

fn serve_within(
    listener: TcpListener,
    mut state: HttpState,
    limits: Limits,
) -> Result<Server, HttpError> {
    state.hosts.extend(host::own_names());
    let address = listener.local_addr().map_err(HttpError::Thread)?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "[http] listen = \"{address}\": other machines can read everything without a password; listen on 127.0.0.1, \
             or keep the port behind a firewall or a proxy that authenticates"
        );
    }
    let scopes = Arc::new(scope::Hub::new(std::mem::take(&mut state.rings)));
    let router = routes::router(state, scopes.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(HttpError::Thread)?;
    let listener = {
        let _context = runtime.enter();
        tokio::net::TcpListener::from_std(listener).map_err(HttpError::Thread)?
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let run = move || {
        let streams = scopes.clone();
        runtime.block_on(async move {
            let (begin, begun) = oneshot::channel::<()>();
            let graceful = async move {
                // The server also stops if the sender is dropped.
                let _ = stopped.await;
                streams.close();
                let _ = begin.send(());
            };
            let server = axum::serve(Bounded::new(listener, limits), router)
                .with_graceful_shutdown(graceful)
                .into_future();
            let grace = async move {
                let _ = begun.await;
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                ended = server => if let Err(error) = ended {
                    tracing::error!(%error, "the HTTP server ended; /metrics and the probes do not respond until daq is restarted");
                },
                // Without this time limit, a client that keeps its connection open would delay the exit.
                () = grace => {}
            }
        });
        // The threads use the memory of the rings.
        scopes.join();
    };
    let thread = std::thread::Builder::new()
        .name("daq-http".to_owned())
        .spawn(run)
        .map_err(HttpError::Thread)?;
    Ok(Server {
        address,
        stop: Some(stop),
        thread: Some(thread),
    })
}

impl Server {
    /// Returns the address that the server listens on, with the port that was assigned for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server. Requests in progress get at most one second. The port is free when this function returns.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the HTTP server's thread panicked; this is a defect in daq");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
