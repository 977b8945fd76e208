//! Faults that an emulated NIC injects on request.

use super::EmulatedNic;
use super::pair::Pair;
use crate::verbs::{NicEvent, RegistrationMethod};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Default time that a request waits for a peer that is not connected or has no receive posted.
const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_secs(4);

/// The faults of an emulated NIC. Clones share their state, so a test can change the faults later.
///
/// The text form is a list of faults, separated by commas. Messages are counted from 1 over all queue pairs.
///
/// - `cut@N`: the link of a queue pair is cut after the NIC has sent N messages.
/// - `cut-received@N`: the link is cut after the NIC has received N messages.
/// - `lose@N`: the N-th sent message is lost. No effect with `rc`, which would retransmit the message.
/// - `kill@N`: the queue pair fails after the NIC has sent N messages.
/// - `delay=MS`: delay of each sent message in milliseconds.
/// - `timeout=MS`: time that a request waits until the peer is connected and has posted a receive, in milliseconds
///   (default 4000).
/// - `completions=N`: maximum number of entries of a completion queue.
/// - `hold`: received messages are not acknowledged.
/// - `down`: the port is down.
/// - `dma-buf=ERRNO`, `peer=ERRNO`, `host=ERRNO`: this registration method fails with this error number.
///
/// ```
/// use daq_rdma::emulated::Faults;
/// let faults: Faults = "cut@100,lose@5".parse()?;
/// assert!("cut@never".parse::<Faults>().is_err());
/// # drop(faults);
/// # Ok::<(), daq_rdma::emulated::UnknownFault>(())
/// ```
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<FaultPlan>>);

#[derive(Debug, Default)]
struct FaultPlan {
    sent: u64,
    received: u64,
    cut_sent: Vec<u64>,
    cut_received: Vec<u64>,
    lost: Vec<u64>,
    killed: Vec<u64>,
    delay: Duration,
    peer_timeout: Option<Duration>,
    completions: Option<u32>,
    holds: bool,
    is_down: bool,
    refused: Vec<(RegistrationMethod, i32)>,
    nics: Vec<Weak<EmulatedNic>>,
}

/// Error: a text is not a valid fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a fault of an emulated NIC; valid faults are cut@N, cut-received@N, lose@N, kill@N, delay=MS, timeout=MS, completions=N, hold, down, dma-buf=ERRNO, peer=ERRNO, host=ERRNO"
)]
pub struct UnknownFault(String);

impl FromStr for Faults {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let mut plan = FaultPlan::default();
        for fault in text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            plan.add(fault)
                .ok_or_else(|| UnknownFault(fault.to_owned()))?;
        }
        Ok(Self(Arc::new(Mutex::new(plan))))
    }
}

impl FaultPlan {
    fn add(&mut self, fault: &str) -> Option<()> {
        if let Some((what, number)) = fault.split_once('@') {
            let number = number.parse().ok().filter(|number| *number > 0)?;
            match what {
                "cut" => self.cut_sent.push(number),
                "cut-received" => self.cut_received.push(number),
                "lose" => self.lost.push(number),
                "kill" => self.killed.push(number),
                _ => return None,
            }
        } else if let Some((what, number)) = fault.split_once('=') {
            let number: u32 = number.parse().ok()?;
            let time = Duration::from_millis(number.into());
            let errno = i32::try_from(number).ok();
            match what {
                "delay" => self.delay = time,
                "timeout" => self.peer_timeout = Some(time),
                "completions" if number > 0 => self.completions = Some(number),
                "dma-buf" => self.refused.push((RegistrationMethod::DmaBuf, errno?)),
                "peer" => self.refused.push((RegistrationMethod::Peer, errno?)),
                "host" => self.refused.push((RegistrationMethod::Host, errno?)),
                _ => return None,
            }
        } else {
            match fault {
                "hold" => self.holds = true,
                "down" => self.is_down = true,
                _ => return None,
            }
        }
        Some(())
    }
}

/// Faults of one message that is about to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendFault {
    pub is_lost: bool,
    pub delay: Duration,
    /// True if the link is cut after the message.
    pub cuts: bool,
    /// True if the queue pair fails after the message.
    pub kills: bool,
}

impl Faults {
    /// Returns an empty set of faults.
    pub fn none() -> Self {
        Self::default()
    }

    fn plan(&self) -> MutexGuard<'_, FaultPlan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the registration method fail with `errno`; `None` removes this fault.
    pub fn refuse(&self, method: RegistrationMethod, errno: Option<i32>) {
        let mut plan = self.plan();
        plan.refused.retain(|(refused, _)| *refused != method);
        plan.refused.extend(errno.map(|errno| (method, errno)));
    }

    /// If `holds` is true, received messages are no longer acknowledged; if false, all of them are acknowledged again.
    pub fn hold(&self, holds: bool) {
        self.plan().holds = holds;
        for nic in self.nics() {
            nic.wake();
        }
    }

    /// Sets the state of the port. When the port goes down, the links of all queue pairs are cut.
    pub fn port(&self, is_up: bool) {
        self.plan().is_down = !is_up;
        for nic in self.nics() {
            if is_up {
                nic.push_event(NicEvent::PortUp);
            } else {
                nic.push_event(NicEvent::PortDown);
                nic.for_each_pair(Pair::cut);
            }
        }
    }

    /// Cuts the links of all queue pairs now. New links can be connected.
    pub fn cut(&self) {
        for nic in self.nics() {
            nic.for_each_pair(Pair::cut);
        }
    }

    /// Makes all queue pairs fail now, as if the NIC had failed.
    pub fn kill(&self) {
        for nic in self.nics() {
            nic.for_each_pair(Pair::kill);
        }
    }

    fn nics(&self) -> Vec<Arc<EmulatedNic>> {
        self.plan().nics.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn attach(&self, nic: &Arc<EmulatedNic>) {
        let mut plan = self.plan();
        plan.nics.retain(|nic| nic.strong_count() > 0);
        plan.nics.push(Arc::downgrade(nic));
    }

    pub(super) fn refusal(&self, method: RegistrationMethod) -> Option<i32> {
        let plan = self.plan();
        let found = plan.refused.iter().find(|(refused, _)| *refused == method);
        found.map(|(_, errno)| *errno)
    }

    pub(super) fn is_down(&self) -> bool {
        self.plan().is_down
    }

    pub(super) fn holds(&self) -> bool {
        self.plan().holds
    }

    pub(super) fn peer_timeout(&self) -> Duration {
        self.plan().peer_timeout.unwrap_or(DEFAULT_PEER_TIMEOUT)
    }

    pub(super) fn completions(&self) -> Option<u32> {
        self.plan().completions
    }

    /// Counts a message about to be sent and returns its faults.
    pub(super) fn sending(&self) -> SendFault {
        let mut plan = self.plan();
        plan.sent += 1;
        let number = plan.sent;
        SendFault {
            is_lost: plan.lost.contains(&number),
            delay: plan.delay,
            cuts: plan.cut_sent.contains(&number),
            kills: plan.killed.contains(&number),
        }
    }

    /// Counts a received message. Returns true if the link must be cut after this message.
    pub(super) fn received(&self) -> bool {
        let mut plan = self.plan();
        plan.received += 1;
        plan.cut_received.contains(&plan.received)
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faults").field(&*self.plan()).finish()
    }
}
