//! Products of a block's matrix in 8-bit floats: E4M3, but gradients of outputs in E5M2 (Micikevicius
//! et al. 2022), with sums in f32.
//!
//! Both operands of a product are quantized just before it, line by line along the depth, by the
//! largest number in each line. Where tensor-parallel ranks have shares of a line, its maximum is of
//! all shares, so that every grid quantizes to the same codes. Codes lie in a room that all products
//! of a rank use in turn.

use crate::weights::table;
use crate::{Cx, Params, TpSplit, Weight};
use base::{DType, Fp8};
use device::{Arena, Epilogue, Fp8Scaling, Lines, Out, Quantized, Tensor};

/// A matrix that is to be an operand.
#[derive(Clone, Copy)]
struct Operand {
    x: Tensor,
    /// Along the depth.
    lines: Lines,
    format: Fp8,
    /// How ranks share it.
    split: TpSplit,
}

/// The products of a weight w [out, in].
pub struct Products<'a> {
    cx: &'a Cx<'a>,
    room: Tensor,
    w: Tensor,
    /// How ranks share [out, in].
    split: TpSplit,
}

impl<'a> Products<'a> {
    pub fn new(cx: &'a Cx<'a>, room: Tensor, (params, weight): (&Params, Weight)) -> Products<'a> {
        Products { cx, room, w: params[weight], split: weight.block_split() }
    }

    /// y = then(x·wᵀ)
    pub fn forward(&self, x: Tensor, then: Epilogue, y: Out) {
        self.product([self.input(x, Lines::Rows), self.weight(Lines::Rows)], y, then);
    }

    /// dx = then(dy·w)
    pub fn backward_input(&self, dy: Tensor, then: Epilogue, dx: Out) {
        self.product([self.output(dy, Lines::Rows), self.weight(Lines::Columns)], dx, then);
    }

    /// dw = dyᵀ·x
    pub fn backward_weight(&self, dy: Tensor, x: Tensor, dw: Out) {
        let operands = [self.output(dy, Lines::Columns), self.input(x, Lines::Columns)];
        self.product(operands, dw, Epilogue::Nothing);
    }

    fn weight(&self, lines: Lines) -> Operand {
        Operand { x: self.w, lines, format: Fp8::E4M3, split: self.split }
    }

    /// x [N, in]: ranks have the columns that w's columns multiply.
    fn input(&self, x: Tensor, lines: Lines) -> Operand {
        let split = if self.split == TpSplit::Cols { TpSplit::Cols } else { TpSplit::Whole };
        Operand { x, lines, format: Fp8::E4M3, split }
    }

    /// dy [N, out]: ranks have the columns that w's rows gave.
    fn output(&self, dy: Tensor, lines: Lines) -> Operand {
        let split = if self.split == TpSplit::Rows { TpSplit::Cols } else { TpSplit::Whole };
        Operand { x: dy, lines, format: Fp8::E5M2, split }
    }

    fn product(&self, operands: [Operand; 2], c: Out, then: Epilogue) {
        let arena = Arena::over(self.room);
        let [a, b] = operands.map(|operand| self.quantize(operand, &arena));
        self.cx.be.fp8_gemm(&a, &b, c, then);
    }

    fn quantize(&self, operand: Operand, arena: &Arena) -> Quantized {
        let (be, group) = (self.cx.be, self.cx.tp.group);
        let Operand { x, lines, format, split } = operand;
        let scaling = be.fp8_scaling();
        let shared = group.size() > 1 && is_shared(scaling, lines, split);
        let shares = if shared { group.size() } else { 1 };
        let Laid { codes, scales, maxima } = lay(arena, lines.of(x), shares);
        let own = maxima.row_range(if shared { group.rank() } else { 0 }, 1);
        be.line_maxima(x, lines, own.set());
        if shared {
            group.all_gather(own, maxima);
        }
        let to = Quantized { codes, scales, format, scaling };
        be.quantize(x, lines, maxima, &to);
        to
    }
}

/// Whether several ranks have parts of what shares a scale.
fn is_shared(scaling: Fp8Scaling, lines: Lines, split: TpSplit) -> bool {
    match (scaling, lines) {
        (Fp8Scaling::TensorWise, _) => split != TpSplit::Whole,
        (Fp8Scaling::RowWise, Lines::Rows) => split == TpSplit::Cols,
        (Fp8Scaling::RowWise, Lines::Columns) => split == TpSplit::Rows,
    }
}

/// An operand's place.
struct Laid {
    codes: Tensor,  // [lines, depth]
    scales: Tensor, // [1, lines]
    maxima: Tensor, // [shares, lines]
}

fn lay(arena: &Arena, [lines, depth]: [usize; 2], shares: usize) -> Laid {
    Laid {
        codes: arena.matrix(lines, depth, DType::U8),
        scales: arena.matrix(1, lines, DType::F32),
        maxima: arena.matrix(shares, lines, DType::F32),
    }
}

/// Bytes for the operands of any product of `rows` tokens.
pub fn room(cx: &Cx, rows: usize) -> usize {
    let ranks = cx.tp.group.size();
    let both = |of: [[usize; 2]; 2]| {
        let arena = Arena::measuring();
        for operand in of {
            lay(&arena, operand, ranks);
        }
        arena.peak()
    };
    let of_matrix = |[out, into]: [usize; 2]| {
        let forward = both([[rows, into], [out, into]]);
        let backward = both([[rows, out], [into, out]]);
        forward.max(backward).max(both([[out, rows], [into, rows]]))
    };
    let matrices = table(cx.model).into_iter().filter(|spec| spec.is_block_matrix());
    matrices.map(|spec| of_matrix(spec.share(ranks))).max().expect("a block has matrices")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = "
model: {layers: 1, hidden: 16, heads: 2, vocab: 60, seq_len: 16}
data: {train: none}
batch: {micro: 1, global: 1}
lr: {peak: 1e-3}
train: {samples: 1}
";

    #[test]
    fn matrices_are_cut_as_the_table_says() {
        for family in ["gpt2", "qwen3"] {
            let m = manifest::of_test(MODEL, &[format!("model.family={family}")]);
            for spec in table(&m.model).iter().filter(|spec| spec.is_block_matrix()) {
                assert_eq!(spec.weight.block_split(), spec.split, "{}", spec.name);
            }
        }
    }
}
