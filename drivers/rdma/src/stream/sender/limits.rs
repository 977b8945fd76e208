//! Lowers the options of a sender to the limits of its NICs.

use super::{Options, SenderError};
use crate::verbs::{Nic, Service};
use crate::wire::Mode;
use daq_core::units::counted;
use std::sync::Arc;

/// Lowers the options to the limits of all NICs.
pub(super) fn apply_limits(
    nics: &[Arc<dyn Nic>],
    options: &mut Options,
) -> Result<(), SenderError> {
    if matches!(
        (options.mode, options.service),
        (Mode::Write, Service::Ud) | (Mode::Send, Service::Uc)
    ) {
        return Err(SenderError::Options(format!(
            "{} are not supported on {}: use mode = \"write\" with rc or uc, and mode = \"send\" with rc or ud",
            match options.mode {
                Mode::Write => "writes",
                Mode::Send => "messages",
            },
            options.service.name()
        )));
    }
    if options.service == Service::Ud && nics.len() > 1 {
        return Err(SenderError::Options(format!(
            "ud supports only one queue pair, but the stream has {}",
            nics.len()
        )));
    }
    for nic in nics {
        let limits = nic.limits();
        options.inline = options.inline.min(limits.max_inline);
        options.message = options.message.min(limits.max_message);
        if options.service == Service::Ud {
            options.message = options.message.min(nic.port()?.mtu.into());
        }
        if options.service == Service::Uc && options.slot as u64 > options.message {
            return Err(SenderError::Options(format!(
                "{}: a frame has {} bytes, but a message can have at most {}: lower `slot`",
                nic.name(),
                options.slot,
                options.message
            )));
        }
        let max = usize::try_from(limits.max_message).unwrap_or(usize::MAX);
        options.chunk = options.chunk.clamp(1, max.max(1));
    }
    let requests_per_frame = options.requests_per_frame();
    for nic in nics {
        let room = nic.limits().max_work.saturating_sub(1) / requests_per_frame;
        if room == 0 {
            return Err(SenderError::Options(format!(
                "{}: a frame of {} bytes needs {requests_per_frame} writes, but the queue pairs support fewer: lower `slot`",
                nic.name(),
                options.slot
            )));
        }
        options.depth = options.depth.clamp(1, room);
    }
    Ok(())
}

/// Creates a queue pair on each NIC with the stream's options. If a NIC rejects the options, lowers the options and
/// tries again, because the limits that a NIC reports are valid only for the smallest requests.
pub(super) fn probe_queue_pairs(
    nics: &[Arc<dyn Nic>],
    options: &mut Options,
) -> Result<(), SenderError> {
    let wanted = (options.depth, options.inline);
    for (i, nic) in nics.iter().enumerate() {
        if nics[..i].iter().any(|other| Arc::ptr_eq(other, nic)) {
            continue;
        }
        let before = (options.depth, options.inline);
        while let Err(error) = nic.create_queue_pair(&options.queue_pair_options(nics)) {
            // Only these errors can be caused by the requested size.
            let is_too_much = matches!(error.errno, libc::EINVAL | libc::ENOMEM | libc::ENOSPC);
            if is_too_much && options.depth > 1 {
                options.depth /= 2;
            } else if is_too_much && options.inline > 0 {
                options.inline /= 2;
            } else {
                return Err(error.into());
            }
        }
        // If a lower inline size was the solution, the lower depth was not necessary and is raised again.
        while options.inline < before.1 && options.depth < before.0 {
            let depth = options.depth;
            options.depth = (depth * 2).min(before.0);
            if nic
                .create_queue_pair(&options.queue_pair_options(nics))
                .is_err()
            {
                options.depth = depth;
                break;
            }
        }
    }
    if wanted != (options.depth, options.inline) {
        tracing::warn!(
            "{}: the NICs cannot create queue pairs for {} in flight with {}; using {} with {}",
            options.peer,
            counted(wanted.0, "frame"),
            counted(wanted.1, "inline byte"),
            counted(options.depth, "frame"),
            counted(options.inline, "inline byte")
        );
    }
    Ok(())
}
