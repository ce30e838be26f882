//! The planner: what a run will need of memory, time and money, before anything is booked.
//!
//! For gptrain itself the trainer's own engine runs on a device that only counts (`gptrain`). For
//! other programs formulas with constants fitted to measured runs predict, each with an error bar
//! (`others`).
//!
//! Does not know the training loop, nor files but those it is given.

pub mod request;
pub mod setup;
pub mod parts;
pub mod hardware;
pub mod trainers;
pub mod shapes;
pub mod measured;

pub mod gptrain;
pub mod others;

pub mod search;
pub mod change;
pub mod days;
pub mod compare;
pub mod campaign;

pub mod view;
pub mod words;
pub mod print;
pub mod plot;

mod counts;
pub mod rates;
