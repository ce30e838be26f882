//! Decisions as data: pure values that print. Knows no clock, environment or device.

extern crate base;
extern crate self as plan;

pub mod grid;
pub mod ramp;
pub mod schedule;
pub mod split;
pub mod timeline;
