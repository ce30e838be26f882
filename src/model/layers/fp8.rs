//! fp8 matrix products of a block: E4M3, and E5M2 for gradients of outputs (Micikevicius et al.
//! 2022), with f32 sums.
//!
//! Operands are quantized per line along the depth of a product, scaled by the largest magnitude in
//! each line. Reads of each operand are kept to a minimum:
//!
//! | operand | when | bytes per element in bf16 |
//! |---|---|---|
//! | input | forward: rows, by their own maxima, and maxima of columns; backward: columns | 3 and 3 |
//! | gradient of an output | backward: maxima of rows and of columns, then both | 2 and 4 |
//! | weight | like an input; like a gradient, once per step, if it is kept (`Fp8Weight`) | 6 |
//!
//! If tensor-parallel ranks hold shares of a line, or one scale serves a whole matrix, the maxima
//! need a separate read. They are taken over all shares, so that every grid quantizes to the same
//! codes. All products of a rank share one workspace for operands that are not kept.

use crate::fp8_weight::Fp8Weight;
use crate::weights::table;
use crate::{Cx, Params, TpSplit, Weight};
use base::{DType, Fp8};
use device::{
    Arena, Backend, Epilogue, Fp8Scaling, Lines, Out, Quantized, QuantizedBy, Tensor, op,
};

/// fp8 settings and workspace of a pass. A pass without it computes in the model's dtype.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Pass {
    /// Workspace for operands that are not kept, u8 [1, `bytes`].
    pub space: Tensor,
    /// Whether codes of weights are kept from the first micro-batch of a step to its last.
    pub keeps: bool,
    /// Whether this pass recomputes those codes, because the weights may have changed.
    pub new_weights: bool,
}

impl Fp8Pass {
    /// Settings of a forward pass; `first` if its micro-batch is the first of the step.
    pub fn for_forward(self, first: bool) -> Fp8Pass {
        Fp8Pass { new_weights: self.keeps && first, ..self }
    }
}

/// Matrix to quantize as an operand.
#[derive(Clone, Copy)]
struct Operand {
    x: Tensor,
    format: Fp8,
    /// Its split among ranks.
    split: TpSplit,
}

/// Products of a weight w [out, in].
pub struct Products<'a> {
    cx: &'a Cx<'a>,
    arena: Arena,
    new_weights: bool,
    w: Operand,
    kept: Fp8Weight,
}

/// Products of backward.
pub struct Backward<'a> {
    products: Products<'a>,
    /// Rows and columns of dy, quantized.
    dy: [Quantized; 2],
}

impl<'a> Products<'a> {
    pub fn new(cx: &'a Cx<'a>, pass: Fp8Pass, (params, weight): (&Params, Weight)) -> Products<'a> {
        let w = Operand { x: params[weight], format: Fp8::E4M3, split: weight.block_split() };
        let arena = Arena::over(pass.space);
        let kept = params.fp8_weight(weight);
        Products { cx, arena, new_weights: pass.new_weights, w, kept }
    }

    /// y = then(x·wᵀ), and the maxima of x's columns if `maxima` is given.
    pub fn forward(&self, x: Tensor, maxima: Option<Tensor>, then: Epilogue, y: Out) {
        let w = match self.kept.codes {
            None => self.rows(self.w, Some(self.kept.maxima)),
            Some(codes) => {
                if self.new_weights {
                    self.arena.temporary(|_| self.both(self.w, codes));
                }
                codes[0]
            }
        };
        let x = self.rows(self.input(x), maxima);
        self.cx.be.run(op::Fp8Gemm { a: x, b: w, c: y, then });
    }

    /// Quantizes dy for both products of backward.
    pub fn backward(self, dy: Tensor) -> Backward<'a> {
        // Ranks hold the columns that correspond to their rows of w.
        let split = if self.w.split == TpSplit::Rows { TpSplit::Cols } else { TpSplit::Whole };
        let dy = Operand { x: dy, format: Fp8::E5M2, split };
        let places = Lines::BOTH.map(|lines| self.place(dy, lines));
        self.arena.temporary(|_| self.both(dy, places));
        Backward { products: self, dy: places }
    }

    /// Operand x [N, in]: ranks hold the columns that multiply their columns of w.
    fn input(&self, x: Tensor) -> Operand {
        let split = if self.w.split == TpSplit::Cols { TpSplit::Cols } else { TpSplit::Whole };
        Operand { x, format: Fp8::E4M3, split }
    }

    /// Quantizes the rows of x. Also writes the maxima of this rank's columns to `columns`.
    fn rows(&self, m: Operand, columns: Option<Tensor>) -> Quantized {
        let be = self.cx.be;
        let to = self.place(m, Lines::Rows);
        if to.scaling == Fp8Scaling::RowWise && !self.is_shared(m, Lines::Rows) {
            be.run(op::QuantizeRows { x: m.x, to: to.set(), columns: columns.map(Tensor::set) });
        } else {
            let (own, all) = self.maxima(m, Lines::Rows);
            let rows = Some(own.set());
            let columns = columns.map(Tensor::set);
            be.run(op::LineMaxima { x: m.x, rows, columns });
            self.gather(own, all);
            be.run(op::Quantize {
                x: m.x,
                rows: Some(QuantizedBy { maxima: all, to: to.set() }),
                columns: None,
            });
        }
        to
    }

    /// Quantizes the columns of x, given their maxima on this rank.
    fn columns(&self, m: Operand, known: Tensor) -> Quantized {
        let to = self.place(m, Lines::Columns);
        let all = if self.is_shared(m, Lines::Columns) {
            self.maxima(m, Lines::Columns).1
        } else {
            known
        };
        self.gather(known, all);
        self.cx.be.run(op::Quantize {
            x: m.x,
            rows: None,
            columns: Some(QuantizedBy { maxima: all, to: to.set() }),
        });
        to
    }

    /// Quantizes x by rows and by columns.
    fn both(&self, m: Operand, to: [Quantized; 2]) {
        let maxima = Lines::BOTH.map(|lines| self.maxima(m, lines));
        let [rows, columns] = maxima.map(|(own, _)| Some(own.set()));
        self.cx.be.run(op::LineMaxima { x: m.x, rows, columns });
        for (own, all) in maxima {
            self.gather(own, all);
        }
        let [rows, columns] =
            [0, 1].map(|at| Some(QuantizedBy { maxima: maxima[at].1, to: to[at].set() }));
        self.cx.be.run(op::Quantize { x: m.x, rows, columns });
    }

    /// Whether lines with one scale are split among several ranks.
    fn is_shared(&self, m: Operand, lines: Lines) -> bool {
        let split = match (self.cx.be.fp8_scaling(), lines) {
            (Fp8Scaling::TensorWise, _) => m.split != TpSplit::Whole,
            (Fp8Scaling::RowWise, Lines::Rows) => m.split == TpSplit::Cols,
            (Fp8Scaling::RowWise, Lines::Columns) => m.split == TpSplit::Rows,
        };
        self.cx.tp.group.size() > 1 && split
    }

    /// Reserves the maxima of lines: this rank's, as a view of those of all ranks that share the
    /// lines.
    fn maxima(&self, m: Operand, lines: Lines) -> (Tensor, Tensor) {
        let group = self.cx.tp.group;
        let [shares, own] =
            if self.is_shared(m, lines) { [group.size(), group.rank()] } else { [1, 0] };
        let all = self.arena.matrix(shares, lines.shape(m.x)[0], DType::F32);
        (all.row_range(own, 1), all)
    }

    fn gather(&self, own: Tensor, all: Tensor) {
        if all != own {
            self.cx.tp.group.all_gather(own, all);
        }
    }

    fn place(&self, m: Operand, lines: Lines) -> Quantized {
        place(&self.arena, lines.shape(m.x), m.format, self.cx.be.fp8_scaling())
    }
}

impl Backward<'_> {
    /// dx = then(dy·w)
    pub fn input(&self, then: Epilogue, dx: Out) {
        let Products { cx, arena, w, kept, .. } = &self.products;
        arena.temporary(|_| {
            let w = match kept.codes {
                Some([_, columns]) => columns,
                None => self.products.columns(*w, kept.maxima),
            };
            cx.be.run(op::Fp8Gemm { a: self.dy[0], b: w, c: dx, then });
        });
    }

    /// dw = dyᵀ·x, with the column maxima from forward.
    pub fn weight(&self, x: Tensor, maxima: Option<Tensor>, dw: Out) {
        let products = &self.products;
        let then = Epilogue::Nothing;
        let maxima = maxima.expect("a forward in training computed them");
        products.arena.temporary(|_| {
            let x = products.columns(products.input(x), maxima);
            products
                .cx
                .be
                .run(op::Fp8Gemm { a: self.dy[1], b: x, c: dw, then });
        });
    }
}

/// Reserves codes and scales for [lines, depth].
fn place(arena: &Arena, [lines, depth]: [usize; 2], format: Fp8, scaling: Fp8Scaling) -> Quantized {
    let codes = arena.matrix(lines, depth, DType::U8);
    Quantized { codes, scales: arena.matrix(1, lines, DType::F32), format, scaling }
}

/// Lays out the state kept of a weight [out, in]; with `codes`, also its codes by row and by
/// column.
pub fn plan_weight(
    be: &dyn Backend,
    [out, into]: [usize; 2],
    codes: bool,
    arena: &Arena,
) -> Fp8Weight {
    Fp8Weight {
        maxima: arena.matrix(1, into, DType::F32),
        codes: codes.then(|| {
            [[out, into], [into, out]].map(|size| place(arena, size, Fp8::E4M3, be.fp8_scaling()))
        }),
    }
}

/// Bytes of `Fp8Pass::space` that suffice for every product of `rows` tokens.
pub fn bytes(cx: &Cx, rows: usize) -> usize {
    let ranks = cx.tp.group.size();
    let arena = Arena::measuring();
    let codes = |size| place(&arena, size, Fp8::E4M3, Fp8Scaling::RowWise);
    let maxima = |lines| arena.matrix(ranks, lines, DType::F32);
    let operand = |size: [usize; 2]| (codes(size), maxima(size[0]));
    let matrices = table(cx.model)
        .into_iter()
        .filter(|spec| spec.is_block_matrix());
    for [out, into] in matrices.map(|spec| spec.share(ranks)) {
        arena.temporary(|_| [out, into].map(maxima));
        arena.temporary(|_| [[out, into], [rows, into]].map(operand));
        arena.temporary(|_| {
            let of_dy = [[rows, out], [out, rows]].map(codes);
            arena.temporary(|_| [rows, out].map(maxima));
            arena.temporary(|_| operand([into, out]));
            (of_dy, operand([into, rows]))
        });
    }
    arena.peak()
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
            let m = manifest::for_test(MODEL, &[format!("model.family={family}")]);
            for spec in table(&m.model).iter().filter(|spec| spec.is_block_matrix()) {
                assert_eq!(spec.weight.block_split(), spec.split, "{}", spec.name);
            }
        }
    }
}
