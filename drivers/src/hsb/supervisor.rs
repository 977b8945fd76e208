//! Keeps a sensor armed: retries failed arming, and arms again when the device has lost its registers.
//!
//! The supervisor has its own thread, because a request to a device that does not answer takes 1.5 s, and the receiving
//! thread must
//! keep its socket empty meanwhile. The two threads share a [`Link`].
//!
//! | event | action |
//! |---|---|
//! | the device does not announce itself (`device = "auto"`) | logged once; discovery is retried with the intervals of the next row; when it succeeds, the owner of a queue pair is notified |
//! | arming fails | logged once per reason; retried after 1 s, then at doubled intervals of at most 8 s |
//! | no packet for `rearm_after`, and the registers are unchanged | logged once: the sensor is idle, or its packets are lost; arming it again would interrupt a frame |
//! | no packet for `rearm_after`, and the registers are lost | logged; the sensor is armed again with a new key; counted as `rearmed` |
//! | no packet for `rearm_after`, and the registers contain another host's values | logged once; the sensor is left unchanged until that host stops it |
//! | no packet for `rearm_after`, and the device does not answer | logged once; checked again after `rearm_after` |

use super::arm::{ArmParameters, Armed, Registers};
use super::ecb::{Ecb, Reservation};
use super::key;
use daq_core::ledger::Counter;
use daq_core::source::SourceError;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time until a failed arming is retried; doubled after each failure.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum retry interval.
const MAX_RETRY: Duration = Duration::from_secs(8);
/// Minimum and maximum interval between two checks of the shared state.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// State shared by the receiving thread and the supervisor.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Number of packets of the sensor that were accepted.
    accepted: AtomicU64,
    /// Number of times that the sensor received another key; incremented after the key is stored.
    generation: AtomicU64,
    rkey: AtomicU32,
    /// Whether the owner must arm the sensor again.
    is_lost: AtomicBool,
    /// Whether the device was found, so that the owner can arm the sensor.
    is_found: AtomicBool,
}

impl Link {
    /// Sets the number of packets accepted so far.
    pub(super) fn set_accepted(&self, packets: u64) {
        self.accepted.store(packets, Ordering::Relaxed);
    }

    /// Returns the current key if it changed since generation `known`, and updates `known`.
    pub(super) fn renewed(&self, known: &mut u64) -> Option<u32> {
        let generation = self.generation.load(Ordering::Acquire);
        let is_new = generation != *known;
        *known = generation;
        is_new.then(|| self.rkey.load(Ordering::Acquire))
    }

    /// Returns once whether the owner must arm the sensor again.
    pub(super) fn take_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed) && self.is_lost.swap(false, Ordering::AcqRel)
    }

    /// Returns once whether the device that the owner waits for was found.
    pub(super) fn take_found(&self) -> bool {
        self.is_found.load(Ordering::Relaxed) && self.is_found.swap(false, Ordering::AcqRel)
    }

    fn renew(&self, rkey: u32) {
        self.rkey.store(rkey, Ordering::Release);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// Selects which component arms a sensor again, and with which key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rearm {
    /// The supervisor arms the sensor with the configured key.
    SameKey,
    /// The supervisor arms the sensor with a new key.
    NewKey,
    /// The sensor's owner arms it, because it must create a new queue pair first.
    Owner,
}

/// A sensor and its arming parameters.
pub(super) struct Control {
    pub(super) ecb: Arc<Mutex<Ecb>>,
    pub(super) parameters: ArmParameters,
    /// Prevents other sources from using the sensor.
    #[expect(dead_code, reason = "reserves the sensor until it is dropped")]
    pub(super) reservation: Reservation,
}

/// Discovers a device; returns an error if it does not announce itself.
pub(super) type Find = Box<dyn FnMut() -> Result<Control, SourceError> + Send>;

/// The sensor of a supervisor.
pub(super) enum Target {
    /// The device is known.
    Known(Control),
    /// The device has not announced itself yet; this function discovers it.
    Unknown(Find),
}

/// The parameters of a supervisor.
pub(super) struct Parts {
    /// Name of the source, for messages.
    pub(super) name: String,
    pub(super) target: Target,
    pub(super) rearm: Rearm,
    /// Silence after which the registers are read back; zero disables this check.
    pub(super) rearm_after: Duration,
    /// Number of failed register requests.
    pub(super) errors: Counter,
    /// Number of times that the sensor was armed again.
    pub(super) rearmed: Counter,
}

/// Supervises a sensor until it is dropped, which disarms the sensor.
pub(super) struct Supervisor {
    core: Arc<Mutex<Core>>,
    link: Arc<Link>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts the thread. The sensor is armed later by [`arm`](Self::arm).
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let link = Arc::new(Link::default());
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (min, max) = POLL_INTERVAL;
        let interval = if parts.rearm_after.is_zero() {
            max
        } else {
            (parts.rearm_after / 4).clamp(min, max)
        };
        let core = Arc::new(Mutex::new(Core::new(parts, link.clone())));
        let thread = {
            let (core, stop) = (core.clone(), stop.clone());
            std::thread::Builder::new()
                .name("hsb-supervisor".to_owned())
                .spawn(move || {
                    while !is_stopped(&stop, interval) {
                        lock(&core).tick(Instant::now());
                    }
                })?
        };
        Ok(Self {
            core,
            link,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns the state shared with the receiving thread.
    pub(super) const fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Arms the sensor; if that fails, the supervisor logs the error and retries.
    pub(super) fn arm(&self, parameters: ArmParameters) {
        let mut core = lock(&self.core);
        if let Some(control) = &mut core.control {
            control.parameters = parameters;
        }
        self.link.is_lost.store(false, Ordering::Release);
        core.attempt();
    }

    /// Returns the address of the device and the arming parameters, or `None` until the device is found.
    pub(super) fn sensor(&self) -> Option<(SocketAddr, ArmParameters)> {
        let core = lock(&self.core);
        let Control {
            ecb, parameters, ..
        } = core.control.as_ref()?;
        let device = lock(ecb).device();
        Some((device, *parameters))
    }

    /// Arms the sensor with the parameters given to [`new`](Self::new). An unknown device is discovered on the supervisor's
    /// thread. If the owner arms the sensor, [`Link::take_found`] then returns true.
    pub(super) fn start(&self) {
        let mut core = lock(&self.core);
        if core.find.is_some() {
            core.retry_at = Some(Instant::now());
        } else {
            core.attempt();
        }
    }

    /// Stops the sensor.
    pub(super) fn disarm(&self) {
        let mut core = lock(&self.core);
        core.retry_at = None;
        core.armed = None;
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
        self.disarm();
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

/// The condition that was logged last; stored so that each condition is logged once.
#[derive(Debug, PartialEq, Eq)]
enum Reported {
    Unarmed(String),
    NoAnswer,
    Idle,
    TakenOver(SocketAddrV4),
}

struct Core {
    name: String,
    armed: Option<Armed>,
    /// The sensor, dropped after it is disarmed.
    control: Option<Control>,
    /// Discovers the device until it is known.
    find: Option<Find>,
    rearm: Rearm,
    rearm_after: Duration,
    errors: Counter,
    rearmed: Counter,
    link: Arc<Link>,
    was_armed: bool,
    /// Time at which the sensor must be armed.
    retry_at: Option<Instant>,
    /// Current retry interval.
    retry: Duration,
    /// Number of accepted packets at the last check, and when it last changed.
    seen: u64,
    quiet_since: Instant,
    checked: Option<Instant>,
    reported: Option<Reported>,
}

impl Core {
    fn new(parts: Parts, link: Arc<Link>) -> Self {
        let Parts {
            name,
            target,
            rearm,
            rearm_after,
            errors,
            rearmed,
        } = parts;
        let (control, find) = match target {
            Target::Known(control) => (Some(control), None),
            Target::Unknown(find) => (None, Some(find)),
        };
        Self {
            name,
            armed: None,
            control,
            find,
            rearm,
            rearm_after,
            errors,
            rearmed,
            link,
            was_armed: false,
            retry_at: None,
            retry: RETRY,
            seen: 0,
            quiet_since: Instant::now(),
            checked: None,
            reported: None,
        }
    }

    fn sensor(&self) -> String {
        let Some(control) = &self.control else {
            return format!("source {}: the sensor", self.name);
        };
        let device = lock(&control.ecb).device();
        format!(
            "source {}: sensor {} of {device}",
            self.name, control.parameters.sensor
        )
    }

    /// Returns whether `what` differs from the condition that was reported last.
    fn is_news(&mut self, what: Reported) -> bool {
        let is_news = self.reported.as_ref() != Some(&what);
        self.reported = Some(what);
        is_news
    }

    /// Discovers the device if it is unknown, then arms the sensor.
    fn try_arm(&mut self) -> Result<Option<Armed>, String> {
        if let Some(find) = &mut self.find {
            let control = find().map_err(|error| error.to_string())?;
            (self.control, self.find) = (Some(control), None);
            if self.rearm == Rearm::Owner {
                self.link.is_found.store(true, Ordering::Release);
                return Ok(None);
            }
        }
        let Some(Control {
            ecb, parameters, ..
        }) = &self.control
        else {
            return Ok(None);
        };
        let armed = Armed::arm(ecb.clone(), *parameters, self.errors.clone());
        armed.map(Some).map_err(|error| error.to_string())
    }

    fn attempt(&mut self) {
        self.armed = None;
        let armed = self.try_arm();
        let sensor = self.sensor();
        match armed {
            Ok(None) => (self.retry_at, self.retry) = (None, RETRY),
            Ok(Some(armed)) => {
                let host = armed.parameters().host;
                if self.was_armed {
                    self.rearmed.add_shared(1);
                    tracing::info!("{sensor} is armed again and sends to {host}");
                } else {
                    tracing::info!("{sensor} sends to {host}");
                }
                self.armed = Some(armed);
                (self.was_armed, self.retry_at, self.retry) = (true, None, RETRY);
                (self.quiet_since, self.checked, self.reported) = (Instant::now(), None, None);
            }
            Err(error) => {
                if self.is_news(Reported::Unarmed(error.clone())) {
                    tracing::error!(
                        "{sensor} cannot be armed: {error}. Retrying at intervals of up to {} s",
                        MAX_RETRY.as_secs()
                    );
                }
                self.retry_at = Some(daq_core::units::deadline(self.retry));
                self.retry = (self.retry * 2).min(MAX_RETRY);
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        if let Some(at) = self.retry_at {
            if now >= at {
                self.attempt();
            }
            return;
        }
        let Some(armed) = &self.armed else {
            return;
        };
        let accepted = self.link.accepted.load(Ordering::Relaxed);
        if accepted != self.seen {
            (self.seen, self.quiet_since) = (accepted, now);
            if self.reported.take().is_some() {
                tracing::info!("{} sends again", self.sensor());
            }
            return;
        }
        let is_over = |since: Instant| now.saturating_duration_since(since) >= self.rearm_after;
        if self.rearm_after.is_zero()
            || !is_over(self.quiet_since)
            || !self.checked.is_none_or(is_over)
        {
            return;
        }
        self.checked = Some(now);
        match armed.check() {
            Ok(Registers::Unchanged) => {
                let host = armed.parameters().host;
                self.report_idle(host, now);
            }
            Ok(Registers::Lost) => self.lose(),
            Ok(Registers::TakenOver(host)) => {
                if self.is_news(Reported::TakenOver(host)) {
                    tracing::warn!(
                        "{} now sends to {host}, because another host or process armed the sensor. This source arms \
                         the sensor again after that host or process stops it",
                        self.sensor()
                    );
                }
            }
            Err(error) => {
                if self.is_news(Reported::NoAnswer) {
                    tracing::warn!(
                        "{} sends no data: {error}. When the device answers again, this source checks the sensor's registers and arms the sensor again if the register values are lost",
                        self.sensor()
                    );
                }
            }
        }
    }

    fn report_idle(&mut self, host: SocketAddrV4, now: Instant) {
        if self.is_news(Reported::Idle) {
            let seconds = now
                .saturating_duration_since(self.quiet_since)
                .as_secs_f64();
            tracing::warn!(
                "{} has sent nothing for {seconds:.1} s although its registers are unchanged: check the sensor's \
                 trigger; if the sensor sends, check the firewall and the MTU along the path to {host}",
                self.sensor(),
            );
        }
    }

    /// Handles lost registers: arms the sensor again, or notifies its owner.
    fn lose(&mut self) {
        tracing::warn!(
            "{}: the sensor's register values are lost, because the device restarted or another process stopped the \
             sensor. Arming the sensor again; a new epoch begins",
            self.sensor()
        );
        self.reported = None;
        if let Some(armed) = self.armed.take() {
            armed.forget();
        }
        if self.rearm == Rearm::Owner {
            return self.link.is_lost.store(true, Ordering::Release);
        }
        if let Some(Control { parameters, .. }) = &mut self.control {
            if self.rearm == Rearm::NewKey {
                parameters.pages.rkey = key();
            }
            // The receiving thread must know the new key before the sensor can send with it.
            self.link.renew(parameters.pages.rkey);
        }
        self.attempt();
    }
}
