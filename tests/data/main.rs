//! Tokens: datasets, sample orders, mixtures, tokenizers.
//!
//! | module | tests |
//! |---|---|
//! | `megatron` | datasets written by Megatron: the same bytes, the same samples in the same order |
//! | `options` | Megatron-Core's options beyond its defaults: masks by bounds, other cuts |
//! | `order` | sample orders on disk: kept, damaged, as large as they may be |
//! | `source` | samples of training: mixtures, batches, the reader thread, errors |
//! | `stages` | a run whose mixture changes |
//! | `build` | datasets made from text |
//! | `tokenizer` | the same ids as Hugging Face's tokenizers |
//! | `cli` | `gptrain data …` as a user runs it |
//! | `formats` | containers of text: tables, JSON lines, lists of files; and files that are not text |
//! | `compression` | compressed text by the tools that write it |
//! | `folders` | which files of a folder are a corpus |
//! | `parts` | few documents, whose tail is held out |
//! | `fuzz` | damaged files by the thousand: an error or a readable dataset, never a panic |

#[path = "../common/mod.rs"]
mod common;

mod attacks;
mod build;
mod cli;
mod compression;
mod folders;
mod formats;
mod fuzz;
mod megatron;
mod options;
mod order;
mod parts;
mod source;
mod stages;
mod tokenizer;
