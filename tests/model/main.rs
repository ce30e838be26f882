//! The network and the step: losses and gradients are right, on every grid, device and precision.
//!
//! | module | what it holds |
//! |---|---|
//! | `pytorch` | losses, gradients and twenty AdamW steps equal PyTorch's in float64 |
//! | `llama` | the same for Llama, Mistral, Qwen2 and Qwen3, and transformers |
//! | `grids` | every grid of ranks equals one rank, in several families of settings |
//! | `grids_cuda` | grids of GPUs (the software stand-in, or one real GPU) equal one CPU; CUDA graphs |
//! | `offload` | states on the host change no bit, on any grid, CPU and GPU |
//! | `late` | updates that come a step late, by a second implementation of them |
//! | `adam8bit` | moments in 8 bits: their error, bitsandbytes beside them, a run beside AdamW's |
//! | `mup` | what steps change of activations over widths; grids |
//! | `muon` | its steps in float64 and PyTorch's; fp16; on GPUs; what the planner counts |
//! | `compression` | PowerSGD: on every grid as among plain replicas; what it loses, and when nothing |
//! | `sampler` | logits of a text that grows are those of the whole text |
//! | `spikes` | steps above their limits change nothing |
//! | `update_norm` | it is that of the weights, whatever the optimizer and grid, and changes no bit |
//! | `fp16` | training in fp16 follows f32; steps that overflow are skipped; resumes keep the bits |
//! | `fp8` | it learns as bf16 does, every grid as one rank; shared layers are quantized as whole ones |

#[path = "../common/mod.rs"]
mod common;

mod adam8bit;
mod compression;
mod fp16;
mod fp8;
mod grids;
mod grids_cuda;
mod late;
mod llama;
mod muon;
mod mup;
mod offload;
mod pytorch;
mod sampler;
mod spikes;
mod update_norm;
