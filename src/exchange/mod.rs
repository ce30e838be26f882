//! Files of other programs: read into a checkpoint of gptrain's, and written from one.
//!
//! | file | contents |
//! |---|---|
//! | `diff` | compares two checkpoints of any formats |
//! | `foreign` | checkpoints of other trainers, with their optimizer's states |
//! | `hf` | folders of Hugging Face's transformers |
//! | `inspect` | looks into checkpoints of other programs |
//! | `source` | one reader of every checkpoint, gptrain's own included |
//! | `torch` | files of `torch.save` |
//! | `tokenizer` | the tokenizer of a run, which is a file of Hugging Face's or OpenAI's |
//! | `tensor_part` | the part of a parameter that a file holds |
//!
//! Does not know how a checkpoint is stored, nor how a run begins.

pub mod diff;
pub mod foreign;
pub mod hf;
pub mod inspect;
pub mod source;
pub mod script;
mod tensor_part;
pub mod tokenizer;
pub mod torch;

pub use tensor_part::{Pairs, layer_of, queries_keys_values};

/// Shortest decimal number of an f32: 0.1, not 0.10000000149.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}
