//! Tests daq with GigE Vision cameras: the one of Aravis, which is independent software, and the emulated one behind a relay that
//! loses, reorders and repeats known packets.

mod aravis;
mod control;
mod hostile;
mod pixels;
mod relay;
mod resend;
mod setup;
