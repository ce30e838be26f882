//! Vocabulary of all crates. Independent of training.

pub mod busy;
mod choices;
mod commit;
mod control_chars;
pub mod calendar;
mod dtype;
mod fp8;
mod fused;
mod heads;
mod host;
pub mod input;
pub mod json;
mod majority;
pub mod memory;
mod moment;
pub mod number;
pub mod output;
mod problems;
pub mod progress;
mod recent;
mod redact;
pub mod rng;
pub mod say;
mod shell;
mod stamp;
pub mod svg;
pub mod table;
#[doc(hidden)]
#[cfg(feature = "testing")]
pub mod testing;
mod thread_states;
pub mod threads;
mod units;
mod worker;
pub mod wrap;
mod wrong_input;

pub use choices::Gelu;
pub use commit::{commit, set_commit};
pub use control_chars::escape_control;
pub use dtype::DType;
pub use fp8::Fp8;
pub use fused::Fused;
pub use heads::{Heads, Qkv};
pub use host::hostname;
pub use json::null_is_nan;
pub use majority::majority;
pub use moment::{Deadline, Moment};
pub use problems::{Problem, Problems};
pub use recent::push_recent;
pub use redact::redact;
pub use shell::shell_word;
pub use stamp::unix_time;
pub use thread_states::{ThreadState, thread_states};
pub use units::{Bytes, Count, Seconds};
pub use worker::{Worker, in_order};
pub use wrong_input::WrongInput;

/// n / d. Panics if d does not divide n.
pub fn div_exact(n: usize, d: usize) -> usize {
    assert!(d > 0 && n.is_multiple_of(d), "{n} is not a multiple of {d}");
    n / d
}

/// Factor that weight decay applies to a weight in one step, 1 − lr·weight_decay.
pub fn decay_factor(lr: f32, weight_decay: f32) -> f32 {
    (1.0 - f64::from(lr) * f64::from(weight_decay)) as f32
}
