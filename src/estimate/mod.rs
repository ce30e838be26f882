//! The planner: what a run will need of memory, time and money, before anything is booked.
//!
//! For gptrain itself the trainer's own engine runs on a device that only counts (`own`). For other
//! programs cost formulas (`cost`) with constants fitted to measured runs (`learn`, `rows`) predict,
//! each with an error bar (`predict`).
//!
//! Does not know the training loop, nor files but those it is given.

pub mod predict;
pub mod own;

pub mod view;
pub mod print;
pub mod plot;

pub mod days;
pub mod change;
pub mod doctor;
pub mod drift;
pub mod search;

pub mod setup;
pub mod cost;
mod counts;
pub mod rates;
pub mod hardware;
mod learn;

pub mod rows;
pub mod score;
