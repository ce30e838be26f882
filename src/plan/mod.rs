//! Decisions as data: pure, printable values. Independent of clock, environment and device.

pub mod grid;
mod growth;
pub mod length;
pub mod levels;
pub mod ramp;
pub mod robust;
pub mod schedule;
pub mod segments;
pub mod spikes;
pub mod split;
pub mod step_samples;
pub mod stragglers;
pub mod timeline;
