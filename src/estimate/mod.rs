//! The planner: estimates the memory, time and money of a run before any machine is booked.
//!
//! For gptrain itself the trainer's own engine runs on a device that only counts (`gptrain`). Another
//! crate predicts the needs of other programs (`predict`).
//!
//! Independent of the training loop; reads only the files that it is given.

pub mod request;
pub mod setup;
pub mod parts;
pub mod hardware;
pub mod rings;
pub mod machine;
pub mod trainers;
pub mod shapes;
pub mod mixture;
pub mod measured;
pub mod tuned;

pub mod gptrain;
pub mod predict;

pub mod search;
pub mod change;
pub mod days;
pub mod faults;
pub mod compare;
pub mod campaign;

pub mod verdict;
pub mod view;
pub mod words;
pub mod print;
pub mod plot;

pub mod counts;
pub mod deepspeed;
pub mod logs;
pub mod rates;
