//! Tokens: builds datasets from text, and reads training samples from datasets.
//!
//! ```text
//! corpus ──► tokenizer ──► Indexed          text in, .bin/.idx out (`build`)
//!
//! Indexed ──► Order ──► Mixture ──► Source ──► Reader ──► Batch
//! (.bin/.idx)  + split   + blend     + masks    (a thread)
//!              + cache   + plan
//! ```
//!
//! `record` is the tokenizer that a dataset was built with. `eval` reads the data that a model is
//! scored on, from a stream of tokens or from questions.
//!
//! A *sequence* is a stretch of tokens that is stored in a dataset, a *document* one or more sequences, and
//! a *sample* S + 1 tokens cut from them: `seq_len` = S inputs, and one more token, the last target.
//!
//! Independent of devices and ranks: sample k is the same on all of them.

pub mod batch;
pub mod blend;
pub mod build;
pub mod corpus;
pub mod eval;
pub mod indexed;
pub mod mask;
pub mod mixture;
mod open;
pub mod order;
pub mod plan;
pub mod preview;
pub mod random;
mod reader;
mod reshuffle;
pub mod record;
mod shuffle;
mod source;
pub mod split;
pub mod tokenizer;

pub use batch::{Batch, Column};
pub use indexed::Indexed;
pub use plan::MixturePlan;
pub use reader::{CutRequest, Reader, Request};
pub use record::Record;
pub use source::{Datasets, Source, check, validation};
pub use tokenizer::Tokenizer;
