//! Hugging Face folders (config.json, safetensors, tokenizer.json) of GPT-2, BLOOM, Llama,
//! Mistral, Qwen2 and Qwen3: written from a checkpoint, and read into a new run.
//!
//! | file | contents |
//! |---|---|
//! | `family` | table of the families in transformers |
//! | `names` | table of the families' tensors, and the rows of our weights that each contains |
//! | `config` | config.json as a manifest's model, and back |
//! | `weights` | safetensors files of a folder: complete, finite, without unexpected tensors |
//! | `companions` | tokenizer and generation settings |
//! | `load` | weights of a folder on a rank of any grid, for scores |
//! | `mup` | folds the factors of `model.mup`, which no family has, into the weights |
//! | `export` | writes a checkpoint as a folder |

mod companions;
mod config;
mod export;
mod family;
mod load;
mod mup;
mod names;
mod weights;

pub use companions::{Companions, FOLDER, carries, carry, carry_beside, end_tokens, tokenizer_in};
pub use config::{HfConfig, TokenIds, is_config, parse_config, read_config};
pub use export::{Export, Exported, Options};
pub use load::load_weights;
pub use names::{HfTensor, tensors_of};
pub use weights::Weights;
