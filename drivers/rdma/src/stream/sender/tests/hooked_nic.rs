//! An emulated NIC whose registrations and queue pairs a test can refuse or replace.

use crate::connect::mock::nics;
use crate::verbs::{
    Access, Limits, MemoryRegion, Nic, NicEvent, Port, QueuePair, QueuePairOptions,
    RegistrationMethod, VerbsError,
};
use daq_core::region::Region;
use std::fmt;
use std::sync::Arc;

type OnRegister = dyn Fn(&Region) -> Result<(), VerbsError> + Send + Sync;
type OnCreate = dyn Fn(&QueuePairOptions, &dyn Fn() -> Created) -> Created + Send + Sync;
type Created = Result<Box<dyn QueuePair>, VerbsError>;

pub(super) struct HookedNic {
    pub(super) card: Arc<dyn Nic>,
    pub(super) name: &'static str,
    /// Called before a registration.
    pub(super) on_register: Box<OnRegister>,
    /// Called instead of the creation of a queue pair, with a function that creates the queue pair.
    pub(super) on_create: Box<OnCreate>,
}

impl HookedNic {
    pub(super) fn new() -> Self {
        Self {
            card: nics(1).remove(0),
            name: "hooked",
            on_register: Box::new(|_| Ok(())),
            on_create: Box::new(|_, create| create()),
        }
    }
}

impl fmt::Debug for HookedNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Nic for HookedNic {
    fn name(&self) -> &str {
        self.name
    }

    fn limits(&self) -> Limits {
        self.card.limits()
    }

    fn port(&self) -> Result<Port, VerbsError> {
        self.card.port()
    }

    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        (self.on_register)(region)?;
        self.card.register(region, method, access)
    }

    fn create_queue_pair(&self, options: &QueuePairOptions) -> Created {
        (self.on_create)(options, &|| self.card.create_queue_pair(options))
    }

    fn event(&self) -> Option<NicEvent> {
        self.card.event()
    }
}
