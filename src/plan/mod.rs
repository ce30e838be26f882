//! Decisions as data: values that print, are tested, and are only then acted on.
//!
//! Does not know the clock, the environment, or any device.

pub mod ramp;
