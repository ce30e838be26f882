//! Decisions as data: pure values that print. Knows no clock, environment or device.

pub mod grid;
pub mod ramp;
pub mod robust;
pub mod schedule;
pub mod spikes;
pub mod split;
pub mod stragglers;
pub mod timeline;
