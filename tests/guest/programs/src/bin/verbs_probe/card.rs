//! Checks events, overruns and registrations.

use crate::ends::{
    BYTES, End, NOTHING, OPEN, Outcome, TIMEOUT, next, options, pair, succeeded, that, write,
};
use daq_core::gpu::driver::Device;
use daq_core::region::{HostOptions, Region};
use daq_rdma::verbs::{
    Access, Nic, NicEvent, Payload, QueuePairOptions, RegistrationMethod, Service, Side, Status,
    Verb, VerbsError, WorkRequest,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A completion that arrived before the wait raises no event. The wait must return immediately nevertheless.
pub fn come_before(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(Service::Rc))?;
    for id in 0..2 {
        other.queue.post_receive(id, &[])?;
        one.queue.post_send(&WorkRequest {
            id,
            verb: Verb::Send { immediate: None },
            payload: Payload::Memory(&[]),
            signaled: true,
        })?;
        // The send is acknowledged, so the message has also completed at the receiver.
        succeeded(&next(&mut *one.queue)?, id, Side::Sent)?;
        let begin = Instant::now();
        that(
            other.queue.wait(TIMEOUT)?,
            "the queue pair does not support waiting",
        )?;
        that(
            begin.elapsed() < TIMEOUT,
            "the wait must return immediately if a completion has arrived before",
        )?;
        let mut done = [NOTHING];
        while other.queue.poll(&mut done)? == 0 {
            that(begin.elapsed() < TIMEOUT, "no completion arrived")?;
        }
        succeeded(&done[0], id, Side::Received)?;
    }
    Ok(String::new())
}

pub fn waiting(nic: &Arc<dyn Nic>) -> Outcome<String> {
    const ROUNDS: u64 = 100;
    let (mut one, mut other) = pair(nic, options(Service::Rc))?;
    // Polls and sleeps like a real receiver: it sleeps only if there is no completion. If an event is lost, the sleep
    // ends at the timeout.
    let receiver = std::thread::spawn(move || -> Result<(End, u64, u64), String> {
        let mut sleeps = 0;
        for id in 0..ROUNDS {
            other
                .queue
                .post_receive(id, &[])
                .map_err(|error| error.to_string())?;
            if id > 0 {
                // The sender waits for this message before it sends the next one.
                other
                    .queue
                    .post_send(&WorkRequest {
                        id,
                        verb: Verb::Send { immediate: None },
                        payload: Payload::Memory(&[]),
                        signaled: false,
                    })
                    .map_err(|error| error.to_string())?;
            }
            let mut done = [NOTHING];
            while other
                .queue
                .poll(&mut done)
                .map_err(|error| error.to_string())?
                == 0
            {
                let begin = Instant::now();
                let can = other
                    .queue
                    .wait(TIMEOUT)
                    .map_err(|error| error.to_string())?;
                if !can || begin.elapsed() >= TIMEOUT {
                    return Err(format!("round {id}: no event arrived"));
                }
                sleeps += 1;
            }
            if done[0].status != Status::Success {
                return Err(format!("{:?}", done[0]));
            }
        }
        Ok((other, ROUNDS, sleeps))
    });
    for id in 0..ROUNDS {
        if id > 0 {
            let done = next(&mut *one.queue)?;
            succeeded(&done, id, Side::Received)?;
        }
        one.queue.post_receive(id + 1, &[])?;
        one.queue.post_send(&WorkRequest {
            id,
            verb: Verb::Send { immediate: None },
            payload: Payload::Memory(&[]),
            // Completions of sends would be mixed with those of the receives.
            signaled: false,
        })?;
    }
    let (_other, rounds, sleeps) = receiver
        .join()
        .map_err(|_| "the receiving thread panicked")??;
    Ok(format!("{rounds} rounds, {sleeps} sleeps"))
}

pub fn overrun(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let few = QueuePairOptions {
        sends: 4,
        receives: 1,
        ..options(Service::Rc)
    };
    let (mut one, other) = pair(nic, few)?;
    while nic.event().is_some() {}
    let sges = [one.key.sge(0, 8)];
    let work = write(&other.key, 0, Payload::Memory(&sges));
    let mut posted = 0;
    let begin = Instant::now();
    // On some cards, work occupies its queue entry until its completion is polled. Such a card rejects further work,
    // and nothing is lost.
    while posted < 64 && begin.elapsed() < TIMEOUT / 6 {
        match one.queue.post_send(&work) {
            Ok(()) => posted += 1,
            Err(error) if error.errno == 12 => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error.into()),
        }
    }
    if posted < 64 {
        return Ok(format!(
            "the completion queue cannot overrun, because the send queue is full after {posted} work requests"
        ));
    }
    let mut done = [NOTHING; 16];
    let begin = Instant::now();
    let error = loop {
        match one.queue.poll(&mut done) {
            Ok(_) => that(
                begin.elapsed() < TIMEOUT,
                "polling must report the overrun, but reported nothing",
            )?,
            Err(error) => break error,
        }
    };
    while let Some(event) = nic.event() {
        if event == NicEvent::CompletionOverrun {
            return Ok(error.to_string());
        }
    }
    Err("the card raised no event for the overrun".into())
}

pub fn other_ways(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let region = Region::host(BYTES, HostOptions::default())?;
    let refusals = [RegistrationMethod::DmaBuf, RegistrationMethod::Peer]
        .map(|method| nic.register(&region, method, OPEN).err());
    let relaxed = Access {
        relaxed: true,
        ..OPEN
    };
    nic.register(&region, RegistrationMethod::Host, relaxed)?;
    match refusals {
        [Some(one), Some(other)] => Ok(format!("{one}; {other}")),
        _ => Err("host memory was registered as GPU memory".into()),
    }
}

pub fn gpu_memory(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let gpu = match Device::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return Ok(format!("skip: {error}")),
    };
    let region = Region::cuda(gpu, 1 << 21)?;
    let mut output = Vec::new();
    for method in [
        RegistrationMethod::DmaBuf,
        RegistrationMethod::Peer,
        RegistrationMethod::Host,
    ] {
        match nic.register(&region, method, OPEN) {
            Ok(key) => output.push(format!("{method}: {key:?}")),
            Err(VerbsError { errno, why, .. }) => {
                that(
                    !why.is_empty(),
                    format!("{method}: errno {errno} without an explanation"),
                )?;
                output.push(format!("{method}: errno {errno}, {why}"));
            }
        }
    }
    Ok(output.join("; "))
}
