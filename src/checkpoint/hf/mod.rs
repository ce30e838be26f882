//! Hugging Face's folders (config.json, safetensors, tokenizer.json) of GPT-2 and BLOOM: written
//! from a checkpoint, and read into a new run.
//!
//! The two families hold the same weights as ours under other names; GPT-2 besides stores its
//! matrices as [in, out] and q, k and v one after the other, where ours (and BLOOM) keep the three
//! together head by head.

mod config;
mod export;
mod names;
mod weights;

pub use config::read_config;
pub use export::{Exported, export};
pub use names::{HfTensor, tensor_of};
pub use weights::Weights;
