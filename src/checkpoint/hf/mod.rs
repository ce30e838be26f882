//! Hugging Face's folders (config.json, safetensors, tokenizer.json) of GPT-2, BLOOM, Llama,
//! Mistral, Qwen2 and Qwen3: written from a checkpoint, and read into a new run.
//!
//! | file | what it knows |
//! |---|---|
//! | `names` | the table of the families' tensors, and which rows of ours each is |
//! | `config` | config.json as a manifest's model, and back |
//! | `weights` | safetensors files of a folder: complete, finite, nothing left over |
//! | `companions` | tokenizer and generation settings, which are carried along |
//! | `load` | a folder's weights on a rank of any grid, for scores |
//! | `mup` | where the factors of `model.mup` go, which no family has |
//! | `export` | a checkpoint as a folder; `train::import` is the way back |

mod companions;
mod config;
mod export;
mod load;
mod mup;
mod names;
mod weights;

pub use companions::{Companions, FOLDER, TOKENIZER, carry, carry_beside};
pub use config::{HfConfig, TokenIds, read_config};
pub use export::{Exported, Options, export};
pub use load::load_weights;
pub use names::{HfTensor, tensors_of};
pub use weights::Weights;
