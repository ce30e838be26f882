//! Ops of a step as values. A struct per op states its tensors, its check and its cost; a backend
//! adds the code that computes it.
//!
//! A new op is a struct in one of the files of this folder, a row of `every_op`, and a function in
//! each backend.

mod adafactor;
mod attention;
mod elementwise;
mod fp8;
mod loss;
mod muon;
mod norm;
mod product;
mod update;

pub use adafactor::{
    Adafactor, AdafactorScalars, AdafactorSquareSums, FactorSums, FusedSquareSums, MoveSecondMoment,
};
pub use attention::{Attention, AttentionBackward, QueryKey, QueryKeyBackward};
pub use elementwise::{
    Blend, ColumnSums, Copy, Dropout, Gelu, Residual, ResidualBackward, Swiglu, SwigluBackward,
    Zero,
};
pub use fp8::{Fp8Gemm, LineMaxima, Quantize, QuantizeRows};
pub use loss::{CrossEntropy, CrossEntropyStats, CrossEntropyUnsplit, Embed, EmbedBackward};
pub use muon::{Fuse, Momentum, MuonUpdate, ScaleToNorm1, Unfuse};
pub use norm::{LayerNorm, LayerNormBackward, NormResidualBackward, ResidualNorm};
pub use product::Gemm;
pub use update::{
    Adam8bit, AdamScalars, AdamW, Axpy, Clip, Digests, LossScaleStep, Orthogonalize, SkipAbove,
    SquareSums, Sum,
};

use super::{Out, Tensor, Work};

/// Table of all ops: `then!` of the struct of each, and of the function that computes it in the
/// modules of every backend.
macro_rules! every_op {
    ($then:ident $($before:tt)*) => {
        $then! { $($before)*
            Zero => elementwise::zero,
            Copy => elementwise::copy,
            Blend => elementwise::blend,
            Dropout => elementwise::dropout,
            Residual => elementwise::residual,
            ResidualBackward => elementwise::residual_backward,
            ColumnSums => elementwise::column_sums,
            Gelu => gelu::gelu,
            Swiglu => gelu::swiglu,
            SwigluBackward => gelu::swiglu_backward,
            Gemm => gemm::gemm,
            Embed => embed::forward,
            EmbedBackward => embed::backward,
            LayerNorm => layernorm::forward,
            LayerNormBackward => layernorm::backward,
            ResidualNorm => layernorm::residual_norm,
            NormResidualBackward => layernorm::norm_residual_backward,
            QueryKey => query_key::forward,
            QueryKeyBackward => query_key::backward,
            Attention => attention::forward,
            AttentionBackward => attention::backward,
            CrossEntropyStats => cross_entropy::stats,
            CrossEntropy => cross_entropy::losses,
            CrossEntropyUnsplit => cross_entropy::unsplit,
            Sum => optimizer::sum,
            SquareSums<'a> => optimizer::square_sums,
            Digests<'a> => optimizer::digests,
            Axpy => low_rank::axpy,
            Orthogonalize<'a> => low_rank::orthogonalize,
            Clip => optimizer::clip,
            LossScaleStep => optimizer::loss_scale_step,
            SkipAbove => optimizer::skip_above,
            AdamScalars => optimizer::adam_scalars,
            AdamW<'a> => optimizer::adamw,
            Adam8bit => adam8bit::adam8bit,
            FactorSums => adafactor::factor_sums,
            FusedSquareSums => adafactor::fused_square_sums,
            AdafactorScalars => adafactor::scalars,
            MoveSecondMoment => adafactor::move_second_moment,
            AdafactorSquareSums => adafactor::square_sums,
            Adafactor => adafactor::update,
            Momentum => muon::momentum,
            Unfuse => muon::unfuse,
            Fuse => muon::fuse,
            ScaleToNorm1 => muon::scale_to_norm_1,
            MuonUpdate => muon::update,
            LineMaxima => fp8::line_maxima,
            Quantize => fp8::quantize,
            QuantizeRows => fp8::quantize_rows,
            Fp8Gemm => gemm::fp8,
        }
    };
}

/// Calls the function of an op in the modules of a backend.
macro_rules! call_of_op {
    ($backend:ident $op:ident $($kind:ident $(<$life:lifetime>)? => $($path:ident)::+,)*) => {
        match $op { $($crate::Op::$kind(op) => $($path)::+($backend, op),)* }
    };
}

pub(crate) use {call_of_op, every_op};

/// Statements of an op about itself.
pub trait Spec {
    /// Name in profiles and plans; ops of one purpose share it.
    const NAME: &'static str;
    /// Panics if a shape or dtype is wrong, which is a bug.
    fn check(&self);
    /// FLOPs and memory traffic, as the planner counts them. No call if the op does nothing.
    fn cost(&self) -> Work;
    /// Tensors that the op reads and writes.
    fn tensors(&self) -> Accesses;
}

macro_rules! define_op {
    ($($kind:ident $(<$life:lifetime>)? => $($path:ident)::+,)*) => {
        /// One op with its arguments.
        #[derive(Clone, core::marker::Copy, Debug)]
        pub enum Op<'a> { $($kind($kind $(<$life>)?),)* }

        impl<'a> Op<'a> {
            /// Kinds of ops: the names of their structs.
            pub const KINDS: &'static [&'static str] = &[$(stringify!($kind)),*];

            pub fn kind(&self) -> &'static str {
                match self { $(Op::$kind(_) => stringify!($kind),)* }
            }

            pub fn name(&self) -> &'static str {
                match self { $(Op::$kind(_) => <$kind as Spec>::NAME,)* }
            }

            /// Panics if a shape or dtype is wrong, which is a bug.
            pub fn check(&self) {
                match self { $(Op::$kind(op) => op.check(),)* }
            }

            pub fn cost(&self) -> Work {
                match self { $(Op::$kind(op) => op.cost(),)* }
            }

            pub fn tensors(&self) -> Accesses {
                match self { $(Op::$kind(op) => op.tensors(),)* }
            }
        }

        $(impl<'a> From<$kind $(<$life>)?> for Op<'a> {
            fn from(op: $kind $(<$life>)?) -> Op<'a> {
                Op::$kind(op)
            }
        })*
    };
}

every_op!(define_op);

/// Use of a tensor by an op.
#[derive(Clone, core::marker::Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Read, then written: accumulated into, or updated in place.
    Update,
}

/// Tensors of an op with their uses. A tensor that is read and written by separate arguments is
/// there twice.
#[derive(Clone, Debug, Default)]
pub struct Accesses(pub Vec<(Tensor, Access)>);

impl Accesses {
    fn with(mut self, xs: impl IntoIterator<Item = Tensor>, access: Access) -> Accesses {
        self.0.extend(xs.into_iter().map(|x| (x, access)));
        self
    }

    fn read(self, xs: impl IntoIterator<Item = Tensor>) -> Accesses {
        self.with(xs, Access::Read)
    }

    fn update(self, xs: impl IntoIterator<Item = Tensor>) -> Accesses {
        self.with(xs, Access::Update)
    }

    fn write(mut self, outs: impl IntoIterator<Item = Out>) -> Accesses {
        let access = |add| if add { Access::Update } else { Access::Write };
        self.0
            .extend(outs.into_iter().map(|out| (out.to, access(out.add))));
        self
    }
}

/// Tensors that an op reads; others are added to them.
fn reads(xs: impl IntoIterator<Item = Tensor>) -> Accesses {
    Accesses::default().read(xs)
}

/// Weight that an optimizer rounds its master weight into: None if it is the master weight.
fn rounded(weight: Tensor, master: Tensor) -> Option<Tensor> {
    (weight.addr() != master.addr()).then_some(weight)
}

/// Panics unless all are like x in shape and dtype.
fn assert_like(x: Tensor, others: &[Tensor], names: &str) {
    for y in others {
        let [a, b] = [x, *y].map(|x| (x.rows, x.cols, x.dtype));
        assert_eq!(a, b, "{names}");
    }
}
