//! Accesses of an op to tensors, as the types of its arguments state them.

use crate::{
    Adafactor, AdamW, AdamWUpdate, Attend, Coded, Dropout, Epilogue, FusedMatrix, Gemm, Logits,
    LossLogits, MatrixPart, Momentum, Norm, Out, QkNorm, Quantized, QuantizedBy, QueryKey,
    Rotation, Scaler, Scaling, SecondMoment, StepLimits, Tensor, Visible, ZLoss,
};
use base::{Gelu, Heads};

/// Use of a tensor by an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    fn add(&mut self, x: Tensor, access: Access) {
        self.0.push((x, access));
    }

    /// Adds the accesses of an op, which may be part of a fused one: what an earlier part has read
    /// or written is not read again.
    pub(super) fn part(&mut self, of_op: impl FnOnce(&mut Accesses)) {
        let mut part = Accesses::default();
        of_op(&mut part);
        let earlier = self.0.len();
        for (x, access) in part.0 {
            let known = self.0[..earlier].iter().any(|(y, _)| *y == x);
            match access {
                Access::Read if known => {}
                Access::Update if known => self.add(x, Access::Write),
                _ => self.add(x, access),
            }
        }
    }
}

/// Argument of an op. Its type states what the op does with its tensors: a `Tensor` is read, an
/// `Out` written, an `InPlace` read and written.
pub trait Arg {
    /// Adds the tensors with their uses.
    fn access(&self, to: &mut Accesses);
}

/// Argument that an op reads and then writes.
#[derive(Clone, Copy, Debug)]
pub struct InPlace<T = Tensor>(pub T);

impl Arg for Tensor {
    fn access(&self, to: &mut Accesses) {
        to.add(*self, Access::Read);
    }
}

impl Arg for Out {
    fn access(&self, to: &mut Accesses) {
        to.add(self.to, if self.add { Access::Update } else { Access::Write });
    }
}

impl Arg for InPlace {
    fn access(&self, to: &mut Accesses) {
        to.add(self.0, Access::Update);
    }
}

impl<T: Arg> Arg for Option<T> {
    fn access(&self, to: &mut Accesses) {
        if let Some(argument) = self {
            argument.access(to);
        }
    }
}

impl<T: Arg> Arg for &[T] {
    fn access(&self, to: &mut Accesses) {
        for argument in *self {
            argument.access(to);
        }
    }
}

impl Arg for InPlace<&[Tensor]> {
    fn access(&self, to: &mut Accesses) {
        for x in self.0 {
            InPlace(*x).access(to);
        }
    }
}

/// Arguments without tensors.
macro_rules! values {
    ($($type:ty),* $(,)?) => { $(impl Arg for $type {
        fn access(&self, _: &mut Accesses) {}
    })* };
}
values!(f32, usize, Heads, Gelu, Gemm, AdamW, Adafactor, Momentum, Scaling, StepLimits);
values!(MatrixPart, FusedMatrix);

/// Arguments of several parts. All fields are named, so that none is forgotten.
macro_rules! structs {
    ($($type:ident { $($field:ident),* })*) => { $(impl Arg for $type {
        fn access(&self, to: &mut Accesses) {
            let $type { $($field),* } = self;
            $($field.access(to);)*
        }
    })* };
}
structs! {
    QkNorm { query, key, eps }
    Rotation { positions, table }
    QueryKey { heads, norm, rotation }
    Attend { heads, first_head, scale, seq, visible, window, slopes, dropout }
    Logits { x, first, vocab, cap }
    ZLoss { coefficient, losses }
    QuantizedBy { maxima, to }
    AdamWUpdate { rule, grad, master, m, v, weight }
}

impl Arg for Norm {
    fn access(&self, to: &mut Accesses) {
        let (scale, shift, _) = self.parts();
        scale.access(to);
        shift.access(to);
    }
}

impl Arg for Dropout {
    fn access(&self, to: &mut Accesses) {
        if self.rate > 0.0 {
            self.first_sample.access(to);
        }
    }
}

impl Arg for Visible {
    fn access(&self, to: &mut Accesses) {
        match self {
            Visible::Causal => {}
            Visible::Ranges(ranges) => ranges.access(to),
        }
    }
}

impl Arg for LossLogits {
    fn access(&self, to: &mut Accesses) {
        if let Some(scale) = self.scale {
            scale.access(to);
            InPlace(self.logits.x).access(to);
        }
    }
}

impl Arg for Epilogue {
    fn access(&self, to: &mut Accesses) {
        match *self {
            Epilogue::Nothing => {}
            Epilogue::Bias(bias) => bias.access(to),
            Epilogue::BiasGelu { bias, pre, .. } => {
                bias.access(to);
                pre.set().access(to);
            }
            Epilogue::GeluBackward { pre, .. } => pre.access(to),
            Epilogue::BiasBackward(db) => db.access(to),
        }
    }
}

impl Arg for Quantized {
    fn access(&self, to: &mut Accesses) {
        self.codes.access(to);
        self.scales.access(to);
    }
}

impl Arg for Out<Quantized> {
    fn access(&self, to: &mut Accesses) {
        self.to.scales.set().access(to);
        self.to.codes.set().access(to);
    }
}

impl Arg for InPlace<Coded> {
    fn access(&self, to: &mut Accesses) {
        InPlace(self.0.codes).access(to);
        InPlace(self.0.scales).access(to);
    }
}

impl Arg for InPlace<Scaler> {
    fn access(&self, to: &mut Accesses) {
        InPlace(self.0.scale).access(to);
        InPlace(self.0.counts).access(to);
    }
}

impl Arg for SecondMoment {
    fn access(&self, to: &mut Accesses) {
        for x in self.tensors() {
            x.access(to);
        }
    }
}

/// `mean` is computed again from the others.
impl Arg for InPlace<SecondMoment> {
    fn access(&self, to: &mut Accesses) {
        match self.0 {
            SecondMoment::Full(v) => InPlace(v).access(to),
            SecondMoment::Factored { row, col, mean } => {
                InPlace(row).access(to);
                InPlace(col).access(to);
                mean.set().access(to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, op};
    use Access::{Read, Update, Write};
    use base::DType;

    fn row(address: usize) -> Tensor {
        Tensor::at(address, 1, 4, DType::F32)
    }

    fn tensors<'a>(op: impl Into<Op<'a>>) -> Vec<(Tensor, Access)> {
        op.into().tensors().0
    }

    #[test]
    fn the_type_of_an_argument_states_its_access() {
        let [x, y] = [256, 512].map(row);
        assert_eq!(tensors(op::Copy { x, y: y.set() }), [(x, Read), (y, Write)]);
        assert_eq!(tensors(op::Copy { x, y: y.add() }), [(x, Read), (y, Update)]);
        let halve = op::Blend { a: 0.5, x, b: 0.5, y: InPlace(y) };
        assert_eq!(tensors(halve), [(x, Read), (y, Update)]);
        assert_eq!(tensors(op::Blend::multiply(0.5, x)), [(x, Read), (x, Update)]);
    }

    /// The norm of a fused op reads what the residual has written.
    #[test]
    fn a_part_does_not_read_again_what_an_earlier_one_has() {
        let [x, branch, y, scale, h, stats, first_sample] =
            [1, 2, 3, 4, 5, 6, 7].map(|i| row(256 * i));
        let drop = Dropout { rate: 0.0, key: 0, first_sample, seq: 1, first_row: 0 };
        let residual = op::Residual { x, branch, bias: None, drop, y: y.set() };
        let norm = Norm::Rms { scale, eps: 0.0 };
        let norm = op::LayerNorm { x: y, norm, y: h.set(), stats: stats.set() };
        let reads = [(x, Read), (branch, Read)];
        let all = [&reads[..], &[(y, Write), (scale, Read), (h, Write), (stats, Write)]].concat();
        assert_eq!(tensors(op::ResidualNorm { residual, norm }), all);
    }
}
