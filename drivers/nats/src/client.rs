//! The client: connections, and the thread that a publisher or a consumer has.

mod consumer;
mod publisher;
mod state;
mod stream;

pub use consumer::{Consumer, Received};
pub use publisher::Publisher;

use crate::NatsError;
use crate::keys::{Connection, Secret, Tls};
use async_nats::connection::State;
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use daq_core::ledger::Counter;
use daq_core::log_limit::LogLimit;
use daq_core::notify::Notifier;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Maximum time for the first connection and for each request at startup.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait before the client tries to connect again.
const MAX_RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// Maximum time for passing a message to the client.
const SEND_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum time for the end of a client.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of periodic work.
const TICK: Duration = Duration::from_millis(100);

/// Why messages are not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Trouble {
    /// They are accepted.
    None = 0,
    /// No server or no stream is available.
    Unavailable = 1,
    /// The stream is full.
    Full = 2,
}

/// What the data thread and the client's thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    trouble: AtomicU8,
    why: Mutex<String>,
    /// Wakes the data thread.
    pub(crate) data: Notifier,
    /// Wakes the client's thread.
    pub(crate) client: Notify,
    pub(crate) is_closing: AtomicBool,
    /// Milliseconds between `start` and the last progress.
    progress_ms: AtomicU64,
    /// Incremented with each connection.
    pub(crate) connects: AtomicU64,
    /// Incremented when a connection is interrupted.
    pub(crate) interruptions: AtomicU64,
    start: Instant,
    connections: Counter,
    name: String,
    limits: [LogLimit; 3],
    /// Why the first frame cannot be received.
    pub(crate) failure: OnceLock<NatsError>,
}

impl Shared {
    fn new(name: &str, connections: Counter) -> Arc<Self> {
        Arc::new(Self {
            trouble: AtomicU8::new(0),
            why: Mutex::default(),
            data: Notifier::default(),
            client: Notify::new(),
            is_closing: AtomicBool::new(false),
            progress_ms: AtomicU64::new(0),
            connects: AtomicU64::new(0),
            interruptions: AtomicU64::new(0),
            start: Instant::now(),
            connections,
            name: name.to_owned(),
            limits: <[LogLimit; 3]>::default(),
            failure: OnceLock::new(),
        })
    }

    pub(crate) fn set_trouble(&self, trouble: Trouble, why: &str) {
        if trouble != Trouble::None {
            let mut text = self.why.lock().unwrap_or_else(PoisonError::into_inner);
            why.clone_into(&mut text);
        }
        self.trouble.store(trouble as u8, Ordering::Release);
        self.data.notify();
    }

    pub(crate) fn trouble(&self) -> Trouble {
        match self.trouble.load(Ordering::Acquire) {
            0 => Trouble::None,
            1 => Trouble::Unavailable,
            _ => Trouble::Full,
        }
    }

    pub(crate) fn why(&self) -> String {
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Records that the server has answered.
    pub(crate) fn progress(&self) {
        let ms = self.start.elapsed().as_millis();
        self.progress_ms
            .store(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Returns the time since the server has last answered.
    pub(crate) fn idle(&self) -> Duration {
        let last = Duration::from_millis(self.progress_ms.load(Ordering::Acquire));
        self.start.elapsed().saturating_sub(last)
    }

    fn event(&self, event: &Event) {
        let name = &self.name;
        match event {
            Event::Connected => {
                self.connections.add(1);
                self.connects.fetch_add(1, Ordering::AcqRel);
                self.progress();
                self.set_trouble(Trouble::None, "");
                if self.connects.load(Ordering::Acquire) > 1 {
                    self.limits[0].run(|suppressed| {
                        tracing::info!("{name}: connected to the NATS server again{suppressed}");
                    });
                }
            }
            Event::Disconnected => {
                self.interruptions.fetch_add(1, Ordering::AcqRel);
                let why =
                    "the connection is interrupted; daq connects again as soon as a server answers";
                self.set_trouble(Trouble::Unavailable, why);
                self.limits[1].run(|suppressed| {
                    tracing::warn!(
                        "{name}: the connection to the NATS server is interrupted{suppressed}"
                    );
                });
            }
            Event::ServerError(_) | Event::ClientError(_) | Event::SlowConsumer(_) => {
                self.limits[2].run(|suppressed| {
                    tracing::warn!("{name}: NATS: {event}{suppressed}");
                });
            }
            Event::LameDuckMode | Event::Draining | Event::Closed => {}
        }
        self.client.notify_one();
    }
}

/// Connects to one of the servers.
async fn connect(
    connection: &Connection,
    shared: &Arc<Shared>,
    capacity: usize,
) -> Result<Client, NatsError> {
    let scheme = if connection.tls.is_some() {
        "tls"
    } else {
        "nats"
    };
    let names: Vec<_> = connection.servers.iter().map(ToString::to_string).collect();
    let what = format!("NATS server {}", names.join(", "));
    let mut servers = Vec::new();
    for name in &names {
        let server: ServerAddr = format!("{scheme}://{name}").parse().map_err(|error| {
            NatsError::configuration(
                format!("NATS server {name}"),
                format!("{error}; correct `servers`"),
            )
        })?;
        servers.push(server);
    }
    let events = shared.clone();
    let mut options = ConnectOptions::new()
        .name(format!("daq {}", shared.name))
        .connection_timeout(START_TIMEOUT)
        .client_capacity(capacity)
        .subscription_capacity(1 << 17)
        .request_timeout(Some(START_TIMEOUT))
        .reconnect_delay_callback(|attempts| {
            let ms = 5_u64.saturating_mul(1 << attempts.min(10));
            Duration::from_millis(ms).min(MAX_RECONNECT_DELAY)
        })
        .event_callback(move |event| {
            events.event(&event);
            std::future::ready(())
        });
    let has_login = !matches!(connection.login.read(&connection.directory)?, Secret::None);
    options = match connection.login.read(&connection.directory)? {
        Secret::None => options,
        Secret::Password(user, password) => options.user_and_password(user, password),
        Secret::Token(token) => options.token(token),
        Secret::Credentials(text) => options.credentials(&text).map_err(|error| {
            let file = connection
                .login
                .credentials_file
                .clone()
                .unwrap_or_default();
            let why = format!("{error}; write the file with `nsc generate creds`");
            NatsError::configuration(format!("login.credentials_file {}", file.display()), why)
        })?,
    };
    if let Some(tls) = &connection.tls {
        options = options.require_tls(true);
        tls.check(&connection.directory)?;
        let at = |file: &std::path::PathBuf| connection.directory.join(file);
        if let Some(file) = &tls.ca_file {
            options = options.add_root_certificates(at(file));
        }
        if let (Some(certificate), Some(key)) = (&tls.certificate_file, &tls.key_file) {
            options = options.add_client_certificate(at(certificate), at(key));
        }
    }
    let connected = tokio::time::timeout(START_TIMEOUT, options.connect(servers)).await;
    let late = || {
        NatsError::new(
            what.clone(),
            "the server does not answer; check the address and firewalls",
        )
    };
    let client = connected.map_err(|_| late())?.map_err(|error| NatsError {
        // The certificates of `tls` or of the system, or the name of the server, cause this kind of error.
        is_configuration: error.kind() == ConnectErrorKind::Tls,
        ..NatsError::new(what.clone(), connect_error(&error, connection, has_login))
    })?;
    if client.connection_state() != State::Connected {
        return Err(late());
    }
    Ok(client)
}

/// Describes why there is no connection, with the fix.
fn connect_error(error: &ConnectError, connection: &Connection, has_login: bool) -> String {
    let text = with_sources(error);
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            let fix = if has_login {
                "correct `login`: the server rejected the user, the password, the token or the credentials"
            } else {
                "set `login`, because the server requires one"
            };
            format!("{text}; {fix}")
        }
        ConnectErrorKind::Tls if text.contains("could not load platform certs") => {
            format!("{text}; install the CA certificates of this system, or set `tls.ca_file`")
        }
        ConnectErrorKind::Tls if text.contains("invalid dns name") => {
            format!("{text}; correct `servers`: TLS requires a valid host name or an IP address")
        }
        ConnectErrorKind::Tls if connection.tls.as_ref().is_some_and(Tls::names_file) => {
            format!(
                "{text}; the files that `tls` names must be PEM files with certificates and a private key"
            )
        }
        ConnectErrorKind::Tls => format!("{text}; correct `servers` or `tls`"),
        // Errors of the TLS handshake have no kind of their own.
        ConnectErrorKind::Io if text.contains("invalid peer certificate") => {
            format!(
                "{text}; set `tls.ca_file` to the certificate that signs the server's, and write its name in `servers` as in \
                 its certificate"
            )
        }
        ConnectErrorKind::Io if text.contains("fatal alert") => {
            format!(
                "{text}; set `tls.certificate_file` and `tls.key_file` to a certificate that the server accepts"
            )
        }
        ConnectErrorKind::Dns => {
            format!("{text}; correct `servers`, or make the name resolvable on this host")
        }
        _ => format!(
            "{text}; start the server (`sudo systemctl start nats-server`), or correct `servers`"
        ),
    }
}

/// Returns the text of an error and of its causes, without repetitions.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

/// The client's thread.
#[derive(Debug)]
struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Runs `start` and then the future that it returns on a thread of its own. Returns the value of `start`.
    fn start<T, S, F, R>(shared: Arc<Shared>, start: S) -> Result<(Self, T), NatsError>
    where
        T: Send + 'static,
        S: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<(T, R), NatsError>>,
        R: Future<Output = ()>,
    {
        let (sender, receiver) = sync_channel(1);
        let failed = |why: String| NatsError::new("the thread of the NATS client", why);
        let thread = std::thread::Builder::new()
            .name("nats".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => {
                        let _ =
                            sender.send(Err(NatsError::new("the NATS client", error.to_string())));
                        return;
                    }
                };
                runtime.block_on(async {
                    match start().await {
                        Ok((value, run)) => {
                            let _ = sender.send(Ok(value));
                            run.await;
                        }
                        Err(error) => {
                            let _ = sender.send(Err(error));
                        }
                    }
                });
            })
            .map_err(|error| failed(error.to_string()))?;
        let started = receiver.recv();
        let mut worker = Self {
            shared,
            thread: Some(thread),
        };
        match started {
            Ok(Ok(value)) => Ok((worker, value)),
            Ok(Err(error)) => {
                worker.join();
                Err(error)
            }
            Err(_) => {
                worker.join();
                Err(failed(
                    "it ended unexpectedly; this is a defect in daq".to_owned(),
                ))
            }
        }
    }

    /// Ends the thread and waits for its end.
    fn join(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.client.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "{}: the thread of the NATS client has failed",
                self.shared.name
            );
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.join();
    }
}
