//! What goes wrong with a software card, exactly when it is told to.

use super::Card;
use super::pair::Pair;
use crate::verbs::{NicEvent, Way};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long work waits for a peer that is not there, or has no receive posted.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The faults of a software card; clones are the same, so a test can go on changing them.
///
/// As text: a list with commas of `cut@N` (the link of the queue is cut once the card has sent N messages),
/// `cut-received@N` (once it has received N), `lose@N` (the N-th message sent is lost; with `rc` nothing is, for it would
/// be sent again), `kill@N` (the queue fails once the card has sent N), `delay=MS` (each message sent waits so many
/// milliseconds), `patience=MS` (how long work waits for a peer or its receives; 4000), `completions=N` (most entries of a
/// completion queue), `hold` (nothing received is acknowledged), `down` (the port is down), `dma-buf=ERRNO`,
/// `peer=ERRNO`, `host=ERRNO` (memory is not registered in this way). Messages are counted from 1 on, over all queues.
///
/// ```
/// use daq_rdma::emulated::Faults;
/// let faults: Faults = "cut@100,lose@5".parse()?;
/// assert!("cut@never".parse::<Faults>().is_err());
/// # drop(faults);
/// # Ok::<(), daq_rdma::emulated::UnknownFault>(())
/// ```
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    sent: u64,
    received: u64,
    cut_sent: Vec<u64>,
    cut_received: Vec<u64>,
    lost: Vec<u64>,
    killed: Vec<u64>,
    delay: Duration,
    patience: Option<Duration>,
    completions: Option<u32>,
    holds: bool,
    is_down: bool,
    refused: Vec<(Way, i32)>,
    cards: Vec<Weak<Card>>,
}

/// Why a text tells of no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no fault of a software card; there are cut@N, cut-received@N, lose@N, kill@N, delay=MS, patience=MS, completions=N, hold, down, dma-buf=ERRNO, peer=ERRNO, host=ERRNO"
)]
pub struct UnknownFault(String);

impl FromStr for Faults {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let mut plan = Plan::default();
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

impl Plan {
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
                "patience" => self.patience = Some(time),
                "completions" if number > 0 => self.completions = Some(number),
                "dma-buf" => self.refused.push((Way::DmaBuf, errno?)),
                "peer" => self.refused.push((Way::Peer, errno?)),
                "host" => self.refused.push((Way::Host, errno?)),
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

/// What happens to one message that is about to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub is_lost: bool,
    pub delay: Duration,
    /// After it.
    pub cuts: bool,
    /// After it.
    pub kills: bool,
}

impl Faults {
    /// None.
    pub fn none() -> Self {
        Self::default()
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing is registered in this way, but refused with `errno`; `None` takes that back.
    pub fn refuse(&self, way: Way, errno: Option<i32>) {
        let mut plan = self.plan();
        plan.refused.retain(|(refused, _)| *refused != way);
        plan.refused.extend(errno.map(|errno| (way, errno)));
    }

    /// From now on nothing received is acknowledged, or all of it again.
    pub fn hold(&self, holds: bool) {
        self.plan().holds = holds;
        for card in self.cards() {
            card.wake();
        }
    }

    /// The port goes down or comes up; the links of all queues are cut as it goes down.
    pub fn port(&self, is_up: bool) {
        self.plan().is_down = !is_up;
        for card in self.cards() {
            if is_up {
                card.tell(NicEvent::PortUp);
            } else {
                card.tell(NicEvent::PortDown);
                card.each(Pair::cut);
            }
        }
    }

    /// Cuts the links of all queues now; new ones can be connected.
    pub fn cut(&self) {
        for card in self.cards() {
            card.each(Pair::cut);
        }
    }

    /// Lets all queues fail now, as if the card had.
    pub fn kill(&self) {
        for card in self.cards() {
            card.each(Pair::kill);
        }
    }

    fn cards(&self) -> Vec<Arc<Card>> {
        self.plan().cards.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn attach(&self, card: &Arc<Card>) {
        let mut plan = self.plan();
        plan.cards.retain(|card| card.strong_count() > 0);
        plan.cards.push(Arc::downgrade(card));
    }

    pub(super) fn refusal(&self, way: Way) -> Option<i32> {
        let plan = self.plan();
        let found = plan.refused.iter().find(|(refused, _)| *refused == way);
        found.map(|(_, errno)| *errno)
    }

    pub(super) fn is_down(&self) -> bool {
        self.plan().is_down
    }

    pub(super) fn holds(&self) -> bool {
        self.plan().holds
    }

    pub(super) fn patience(&self) -> Duration {
        self.plan().patience.unwrap_or(TIMEOUT)
    }

    pub(super) fn completions(&self) -> Option<u32> {
        self.plan().completions
    }

    /// What happens to the next message.
    pub(super) fn sending(&self) -> Fate {
        let mut plan = self.plan();
        plan.sent += 1;
        let number = plan.sent;
        Fate {
            is_lost: plan.lost.contains(&number),
            delay: plan.delay,
            cuts: plan.cut_sent.contains(&number),
            kills: plan.killed.contains(&number),
        }
    }

    /// Whether the link is cut after a message that has come.
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
