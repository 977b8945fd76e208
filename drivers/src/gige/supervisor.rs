//! Keeps a camera streaming: finds it, sets it up, sends heartbeats, and sets it up again when it was lost.
//!
//! The supervisor has its own thread, because requests to a camera that does not answer take long, and the receiving thread must
//! keep its socket empty meanwhile. The two threads share a [`Link`].
//!
//! | event | action |
//! |---|---|
//! | the camera is not found, or cannot be set up | logged once per reason, with the cameras that answer a broadcast; retried after 1 s, then at doubled intervals of at most 8 s |
//! | another application controls the camera | the same, but retried each 500 ms: the camera is free once the heartbeat of a killed application has run out |
//! | a heartbeat is not answered, or the camera has ended the control | logged; the camera is set up again and a new epoch begins; counted as `reconnected` |

use super::blocks::CameraCounts;
use super::control::Control;
use super::discovery;
use super::gvcp;
use super::keys::Selector;
use super::placer::Setup;
use super::setup::{Session, SetupError, Steps};
use crate::sender::Allowed;
use crate::sys::filter::{self, Accepted};
use daq_core::log_limit::LogLimit;
use daq_core::source::{Obstacle, SourceError};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time until a failed set-up is retried; doubled after each failure.
const RETRY: Duration = Duration::from_secs(1);
/// Time until a set-up is retried while another application controls the camera.
const CONTROLLED_RETRY: Duration = Duration::from_millis(500);
/// Maximum retry interval.
const MAX_RETRY: Duration = Duration::from_secs(8);

/// State shared by the receiving thread and the supervisor.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Number of times that the camera was set up; incremented after `camera` is stored and before the camera starts.
    generation: AtomicU64,
    camera: Mutex<Option<(SocketAddrV4, Setup)>>,
}

impl Link {
    /// Returns the camera if it was set up again since generation `known`, and updates `known`.
    pub(super) fn renewed(&self, known: &mut u64) -> Option<(SocketAddrV4, Setup)> {
        let generation = self.generation.load(Ordering::Acquire);
        if generation == *known {
            return None;
        }
        *known = generation;
        *lock(&self.camera)
    }

    fn renew(&self, camera: SocketAddrV4, setup: Setup) {
        *lock(&self.camera) = Some((camera, setup));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// The parameters of a supervisor.
pub(super) struct Parts {
    /// Name of the source, for messages.
    pub(super) name: String,
    pub(super) selector: Selector,
    /// The local address, which may be unspecified.
    pub(super) local: Ipv4Addr,
    pub(super) steps: Steps,
    /// The socket of the stream, whose senders are limited to the camera.
    pub(super) stream: OwnedFd,
    pub(super) counts: CameraCounts,
    pub(super) obstacle: Obstacle,
}

/// Supervises a camera until it is dropped, which stops the camera.
pub(super) struct Supervisor {
    link: Arc<Link>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    parts: Option<Parts>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    pub(super) fn new(parts: Parts) -> Self {
        parts
            .obstacle
            .set("the camera is not set up yet".to_owned());
        Self {
            link: Arc::default(),
            stop: Arc::default(),
            parts: Some(parts),
            thread: None,
        }
    }

    /// Returns the state shared with the receiving thread.
    pub(super) const fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Starts the thread, which sets up the camera.
    pub(super) fn start(&mut self) -> Result<(), SourceError> {
        let Some(parts) = self.parts.take() else {
            return Ok(());
        };
        let name = parts.name.clone();
        let (link, stop) = (self.link.clone(), self.stop.clone());
        let thread = std::thread::Builder::new()
            .name("gige-control".to_owned())
            .spawn(move || {
                let mut core = Core {
                    parts,
                    link,
                    session: None,
                    was_set_up: false,
                    retry: RETRY,
                    reported: None,
                    failures: LogLimit::new(),
                };
                let mut wait = core.tick();
                while !is_stopped(&stop, wait) {
                    wait = core.tick();
                }
                if let Some(session) = core.session {
                    session.close();
                }
            });
        let thread = thread.map_err(|error| {
            SourceError::new(
                format!("source {name}"),
                format!("cannot start the thread that controls the camera: {error}"),
            )
        })?;
        self.thread = Some(thread);
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for `interval`. Returns whether the thread must end.
fn is_stopped(stop: &(Mutex<bool>, Condvar), interval: Duration) -> bool {
    let (flag, changed) = stop;
    let waited = changed.wait_timeout_while(lock(flag), interval, |is_set| !*is_set);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}

struct Core {
    parts: Parts,
    link: Arc<Link>,
    session: Option<Session>,
    was_set_up: bool,
    /// Current retry interval.
    retry: Duration,
    /// The failure that was reported last.
    reported: Option<String>,
    failures: LogLimit,
}

impl Core {
    /// Does the next step. Returns the time until the step after it.
    fn tick(&mut self) -> Duration {
        let Some(mut session) = self.session.take() else {
            return self.attempt();
        };
        let beat = session.beat();
        self.parts
            .counts
            .control_errors
            .add(session.take_failures());
        let why = match beat {
            Ok(true) => {
                let interval = session.heartbeat_interval();
                self.session = Some(session);
                return interval;
            }
            Ok(false) => "it has ended the control of this application, because it restarted or received no heartbeat".to_owned(),
            Err(error) => error.to_string(),
        };
        self.parts
            .obstacle
            .set(format!("the camera is lost: {why}"));
        tracing::warn!(
            "source {}: camera {} is lost: {why}. Setting it up again; a new epoch begins",
            self.parts.name,
            session.camera()
        );
        Duration::ZERO
    }

    /// Tries to set up the camera. Returns the time until the next step.
    fn attempt(&mut self) -> Duration {
        let name = self.parts.name.clone();
        match self.set_up() {
            Ok(session) => {
                let (camera, setup) = (session.camera(), session.setup());
                let again = if self.was_set_up { " again" } else { "" };
                tracing::info!(
                    "source {name}: camera {camera} is set up{again}: packets of {} bytes, resend {}",
                    setup.packet_size,
                    if setup.can_resend {
                        "supported"
                    } else {
                        "not supported"
                    }
                );
                if self.was_set_up {
                    self.parts.counts.reconnected.add(1);
                }
                (self.was_set_up, self.retry, self.reported) = (true, RETRY, None);
                self.parts.obstacle.clear();
                let interval = session.heartbeat_interval();
                self.session = Some(session);
                interval
            }
            Err((error, is_controlled)) => {
                if self.reported.as_ref() != Some(&error) {
                    let retry = if is_controlled {
                        "until then".to_owned()
                    } else {
                        format!("at intervals of up to {} s", MAX_RETRY.as_secs())
                    };
                    self.failures.run(|suppressed| {
                        tracing::error!("source {name}: {error}. Retrying {retry}{suppressed}");
                    });
                }
                self.parts.obstacle.set(error.clone());
                self.reported = Some(error);
                if is_controlled {
                    return CONTROLLED_RETRY;
                }
                let retry = self.retry;
                self.retry = (retry * 2).min(MAX_RETRY);
                retry
            }
        }
    }

    /// Sets up the camera. The error contains the reason, and whether another application controls the camera.
    fn set_up(&mut self) -> Result<Session, (String, bool)> {
        let camera = self.find().map_err(|why| (why, false))?;
        let failed = |error: SetupError| {
            let is_controlled =
                matches!(error, SetupError::Controlled(_) | SetupError::Unanswered(_));
            (
                format!("cannot set up camera {camera}: {error}"),
                is_controlled,
            )
        };
        let control = Control::open(self.parts.local, camera);
        let control = control.map_err(|error| failed(error.into()))?;
        let mut session = Session::open(control, &self.parts.steps).map_err(|error| {
            let is_silent = matches!(
                error,
                SetupError::Control(super::control::ControlError::Silent { .. })
            );
            let (mut message, is_controlled) = failed(error);
            if is_silent && let Ok(found) = discovery::discover(|_| false) {
                message = format!("{message}. Cameras: {}", discovery::list(&found));
            }
            (message, is_controlled)
        })?;
        self.parts
            .counts
            .control_errors
            .add(session.take_failures());
        // Fixes the packet size, because the window keeps the division of the first epoch.
        self.parts.steps.packet_size = Some(session.setup().packet_size);
        let allowed = Allowed {
            network: (*camera.ip()).into(),
            prefix: 32,
            port: None,
        };
        let accepted = Accepted {
            from: Some(&[allowed]),
            streams: None,
        };
        let limited = filter::attach(self.parts.stream.as_fd(), accepted, true);
        let started = limited.map_err(SetupError::Filter).and_then(|()| {
            // The receiving thread must know the camera before the first packet arrives.
            self.link.renew(camera, session.setup());
            session.start()
        });
        match started {
            Ok(()) => Ok(session),
            Err(error) => {
                session.close();
                Err(failed(error))
            }
        }
    }

    /// Returns the control port of the camera.
    fn find(&self) -> Result<SocketAddrV4, String> {
        let selector = &self.parts.selector;
        if let Some(address) = selector.address() {
            return Ok(address);
        }
        let found = discovery::discover(|_| false)
            .map_err(|error| format!("cannot search for cameras: {error}"))?;
        let mut matching = found.iter().filter(|camera| selector.matches(camera));
        match (matching.next(), matching.next()) {
            (Some(camera), None) => {
                tracing::info!("source {}: found {camera}", self.parts.name);
                Ok(SocketAddrV4::new(camera.address, gvcp::PORT))
            }
            (None, _) => Err(format!(
                "there is no camera with {selector}; {}",
                discovery::list(&found)
            )),
            (Some(_), Some(_)) => Err(format!(
                "several cameras match {selector}: set `camera` to one address, or to {{ serial = \"…\" }}; {}",
                discovery::list(&found)
            )),
        }
    }
}
