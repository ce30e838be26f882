//! The network and the step: losses and gradients are right, on every grid, device and precision.
//!
//! | module | tests |
//! |---|---|
//! | `pytorch` | losses, gradients and twenty AdamW steps equal PyTorch's in float64 |
//! | `llama` | the same for Llama, Mistral, Qwen2 and Qwen3, and transformers |
//! | `grids` | every grid of ranks equals one rank, in several families of settings |
//! | `zero_in_pipeline` | ZeRO 2 in every schedule of a pipeline equals one rank |
//! | `breadth_first` | breadth-first pipelines, with ZeRO 3 and sums of micro-batches, equal one rank |
//! | `two_levels` | shard groups and copies of them equal one rank; one group of all is one level |
//! | `grids_cuda` | grids of GPUs (the software stand-in, or one real GPU) equal one CPU; CUDA graphs |
//! | `offload` | states on the host change no bit, on any grid, CPU and GPU |
//! | `measures` | zeros of gradients and norm of weights: counted by hand, on every grid, on GPUs |
//! | `order` | waits order all accesses to one byte, for every manifest and kind of grid |
//! | `adam8bit` | 8-bit moments: their error, against bitsandbytes, and a run against AdamW's |
//! | `mup` | change of activations by steps at several widths; grids |
//! | `muon` | steps against float64 and PyTorch; fp16; GPUs; counts of the planner |
//! | `compression` | PowerSGD: every grid equals plain replicas; its error |
//! | `replayed` | every op of a step on the CPU, replayed on a GPU with the recorded inputs |
//! | `sampler` | logits of a growing text are those of the whole text |
//! | `shapes` | shorter samples and other micro-batches in the memory of the largest |
//! | `traffic` | bytes sent in a step, counted and of the dry run, are those of the literature's formulas |
//! | `spikes` | steps above their limits change nothing |
//! | `fp16` | training in fp16 follows f32; steps that overflow are skipped; resumes keep the bits |
//! | `fp8` | it learns as bf16 does, every grid as one rank; shared layers are quantized as whole ones |

#[path = "../common/mod.rs"]
mod common;

mod adam8bit;
mod breadth_first;
mod compression;
mod fp16;
mod fp8;
mod grids;
mod grids_cuda;
mod llama;
mod measures;
mod muon;
mod mup;
mod offload;
mod order;
mod pytorch;
mod replayed;
mod sampler;
mod shapes;
mod spikes;
mod traffic;
mod two_levels;
mod zero_in_pipeline;
