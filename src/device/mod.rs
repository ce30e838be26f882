//! Tensors, arenas, and the one trait a device fills.
//!
//! Does not know ranks, nor the model. Raw memory is touched only in here and in `comm`.

mod adafactor;
mod arena;
mod backend;
pub mod cpu;
pub mod cuda;
mod dry;
pub mod dynamic_map;
mod tensor;

pub use crate::base::Gelu;
pub use adafactor::{Adafactor, AdafactorOps, MatrixPart, SecondMoment};
pub use arena::Arena;
pub use backend::{
    AdamW, Attend, Backend, Coded, Dead, Dropout, Epilogue, Gemm, Graph, Norm, OutOfMemory, Scaler,
    Scaling, Timeline, Transfer, Visible, digest_term,
};
pub use dry::{COPIES, Dry, Tally, Work};
pub use tensor::{Element, Home, Out, Tensor};
