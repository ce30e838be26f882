//! Tensors, arenas, and the trait that a device implements.
//!
//! Does not know ranks, nor the model. Only this crate and `comm` access raw memory.

mod adafactor;
pub mod allocator;
mod arena;
mod attend;
mod backend;
pub mod cpu;
pub mod cuda;
mod digest;
mod dry;
pub mod dynamic_map;
mod fp8;
mod gpu;
mod meter;
mod monitor;
mod order;
mod muon;
pub mod op;
mod op_log;
mod optimizer;
mod product;
mod tensor;
mod work;

pub use adafactor::{Adafactor, MatrixPart, SecondMoment};
pub use arena::Arena;
pub use attend::{
    Attend, Dropout, Logits, LossLogits, Norm, QkNorm, QueryKey, Rotation, Visible, ZLoss,
};
pub use backend::{Backend, Dead, Graph, LOGITS_CHUNK, OutOfMemory, Timeline, Transfer};
pub use base::{Fp8, Gelu};
pub use digest::{digest_of_bytes, digest_term};
pub use dry::Dry;
pub use fp8::{Fp8Scaling, Lines, Quantized, QuantizedBy};
pub use gpu::{Gpu, GpuRequest};
pub use meter::{HEAD_PRODUCT, Meter, OpTimes, Section};
pub use monitor::{DeviceMemory, Faults, Health, Identity, Monitor};
pub use muon::{FusedMatrix, Momentum};
pub use op::{Access, Accesses, Op};
pub use op_log::{LoggedOp, begin_op_log, take_op_log};
pub use optimizer::{AdamW, AdamWUpdate, Coded, Scaler, Scaling, StepLimits};
pub use order::{Order, Queue};
pub use product::{Epilogue, Gemm};
pub use tensor::{Element, InPlace, MemoryKind, Out, Tensor};
pub use work::{ATTENTION, ATTENTION_BACKWARD, COPIES, FP8_PRODUCT, Tally, Work};
