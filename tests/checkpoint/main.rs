//! Checkpoints: saved whole, read by any grid, resumed bit for bit, and damage is always noticed.
//!
//! | module | what it holds |
//! |---|---|
//! | `resume` | a run that was stopped, killed or asked to save, through the real binary |
//! | `grids` | what any grid saved, any grid loads |
//! | `matrix` | every optimizer, saved and gone on with on every grid and place of its states |
//! | `compression` | PowerSGD's mean error goes on among any number of replicas |
//! | `late` | updates that come a step late: the gradient that waits |
//! | `rules` | states of every shape and type, of an optimizer made up for it |
//! | `adam8bit` | moments in 8 bits are converted from AdamW's, and back |
//! | `changes` | another optimizer at a resume, and `--verify-resume` after it, by the real binary |
//! | `spikes` | loss spikes: skipped, gone back from, on every grid and after every resume |
//! | `slices` | slices of many ranks are one tensor; any rectangle of it can be read |
//! | `faults` | saves that fail at every system call |
//! | `also` | copies in a folder elsewhere: whole or not there, and gone on from |
//! | `also_s3` | the same in S3, on a server of somebody else, with faults between |
//! | `damage` | every damaged byte is found, by `inspect-ckpt --deep` and by a run that resumes |
//! | `format1` | checkpoints of format 1 are read, and gone on from bit for bit |
//! | `inspect` | `gptrain inspect-ckpt`: statistics, differences, warnings |
//! | `hf` | folders of Hugging Face's transformers, in and out: GPT-2 and BLOOM |
//! | `hf_positions` | GPT-2 that goes on with samples shorter than its table of positions |
//! | `hf_llama` | the same of Llama, Mistral, Qwen2 and Qwen3, which also go on training |
//! | `hf_mup` | models of µP, whose factors go into the weights |
//! | `tokenizers` | the tokenizer of a dataset, of its run and of an export is one and the same |
//! | `hf_refused` | folders that are not what they say, and disks that are full |
//! | `bring` | runs of other trainers continue bit for bit: Megatron-DeepSpeed's BLOOM |
//! | `bring_megatron` | the same of Megatron-LM's folders of that Llama |
//! | `bring_llama` | the same of a Llama: the run that it is cut from, and torchtitan's folders |
//! | `torch` | torch.save's files: PyTorch's value by value, hostile and mutated ones |

#[path = "../common/mod.rs"]
mod common;

mod adam8bit;
mod also;
mod also_s3;
mod bring;
mod bring_llama;
mod bring_megatron;
mod changes;
mod compression;
mod damage;
mod eval;
mod faults;
mod format1;
mod grids;
mod hf;
mod hf_llama;
mod hf_mup;
mod hf_positions;
mod hf_refused;
mod inspect;
mod late;
mod matrix;
mod resume;
mod rules;
mod slices;
mod spikes;
mod storage;
mod tokenizers;
mod torch;
