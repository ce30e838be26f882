//! Checkpoints: saved completely, read by any grid, resumed bit for bit, and damage is detected.
//!
//! | module | tests |
//! |---|---|
//! | `resume` | a run that was stopped, killed or asked to save, through the real binary |
//! | `grids` | any grid loads the checkpoints of any other |
//! | `matrix` | every optimizer, saved and resumed on every grid and place of its states |
//! | `compression` | PowerSGD's mean error, resumed on any number of replicas |
//! | `rules` | states of every shape and type, of an optimizer for tests |
//! | `adam8bit` | 8-bit moments, converted from AdamW's and back |
//! | `changes` | another optimizer at a resume, and `--verify-resume` after it, by the real binary |
//! | `shapes` | micro-batches and samples that grow: every grid, resumes, probes, plans |
//! | `spikes` | loss spikes: skips and rollbacks, on every grid and after every resume |
//! | `slices` | slices of many ranks are one tensor; any rectangle of it can be read |
//! | `faults` | saves that fail at every system call |
//! | `weights_only` | old checkpoints reduced to their weights, also when the machine dies meanwhile |
//! | `also` | copies in a second folder: complete or absent, and resumed from |
//! | `also_s3` | copies in S3, on a third-party server, with faults of the network |
//! | `secrets` | credentials of a store's URL are in no message and no file |
//! | `damage` | every damaged byte is found, by `inspect-ckpt --deep` and by a run that resumes |
//! | `parts` | parts of ranks without an index: every byte counts, and together they are a checkpoint |
//! | `format1` | checkpoints of format 1 are read, and resumed bit for bit |
//! | `inspect` | `gptrain inspect-ckpt`: statistics, differences, warnings |
//! | `inspect_foreign` | the same of other programs' folders, and of folders of no format |
//! | `inspect_diff` | `--diff` between formats: conversions, and mistakes of converters |
//! | `hf` | Hugging Face folders, import and export: GPT-2 and BLOOM |
//! | `hf_positions` | GPT-2 that continues with samples shorter than its table of positions |
//! | `hf_llama` | Llama, Mistral, Qwen2 and Qwen3, with continued training |
//! | `hf_dialects` | spellings of config.json, and tensors of several types |
//! | `hf_mup` | models with µP, whose factors are folded into the weights |
//! | `tokenizers` | the tokenizer of a dataset, of its run and of an export is one and the same |
//! | `hf_refused` | invalid folders, and full disks |
//! | `import_steps` | other trainers' folders: the steps that their tests share |
//! | `import_continues` | folders of each trainer continue as the run that they were cut from, bit for bit |
//! | `import_names` | Qwen3 of torchtitan, transformers' models, and names that the user gives |
//! | `import_dry` | dry imports say what an import would refuse |
//! | `import_trainer` | checkpoints of Hugging Face's Trainer, also with bitsandbytes' 8-bit AdamW |
//! | `import_choices` | settings, padding, copies that differ, counts of updates, states that are left |
//! | `import_refused` | folders and settings that an import refuses, and changed bytes |
//! | `import_exported` | the way back: Megatron-LM's folder and DeepSpeed's universal one |
//! | `convert` | any folder in any other format, with the bytes of an import and an export |
//! | `conversion_memory` | memory and disk of imports and conversions |
//! | `check_run` | `gptrain check-run`: sound logs of five trainers agree, planted errors are named |
//! | `torch` | torch.save's files: PyTorch's value by value, hostile and mutated ones |

#[path = "../common/mod.rs"]
mod common;

mod adam8bit;
mod also;
mod also_s3;
mod changes;
mod check_run;
mod compression;
mod conversion_memory;
mod convert;
mod damage;
mod eval;
mod faults;
mod format1;
mod grids;
mod hf;
mod hf_dialects;
mod hf_llama;
mod hf_mup;
mod hf_positions;
mod hf_refused;
mod import_choices;
mod import_continues;
mod import_dry;
mod import_exported;
mod import_names;
mod import_refused;
mod import_steps;
mod import_trainer;
mod inspect;
mod inspect_diff;
mod inspect_foreign;
mod matrix;
mod parts;
mod resume;
mod rules;
mod secrets;
mod slices;
mod shapes;
mod spikes;
mod storage;
mod tokenizers;
mod torch;
mod weights_only;
