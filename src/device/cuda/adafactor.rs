//! Adafactor: sums of squares by rows, columns and fused matrices, and the update.

use super::Cuda;
use super::args;
use super::elementwise::add_parts;
use super::launch::{Grid, typed};
use crate::{Adafactor, AdafactorOps, MatrixPart, Out, SecondMoment, Tensor};
use base::DType;
use std::ptr::{null, null_mut};

/// Blocks to have work for a whole GPU.
const BLOCKS: usize = 1056;
/// Rows that a block sums at least.
const CHUNK: usize = 64;
/// Threads of the one block that moves a fused matrix's second moment.
pub(super) const MOMENT_THREADS: usize = 512;

impl AdafactorOps for Cuda {
    fn factor_sums(
        &self,
        x: Tensor,
        factor: Tensor,
        part: &MatrixPart,
        rows: Option<Out>,
        cols: Out,
    ) {
        let width = part.col_rows() * part.cols;
        assert_eq!(
            (x.numel(), cols.to.numel(), cols.add),
            (part.len, width, true),
            "sums by column"
        );
        let touched = part.touched().len();
        if touched == 0 {
            return;
        }
        let (x, factor) = (x.addr() as _, factor.addr() as _);
        if let Some(rows) = rows {
            assert_eq!((rows.to.numel(), rows.add), (part.rows, true), "sums by row");
            let (rows, part) = (rows.to.addr() as _, args::MatrixPart::new(part));
            let arguments = args::FactorRows { x, factor, rows, part };
            self.launch("factor_rows", Grid::line(touched, 256), arguments);
        }
        let across = part.cols.div_ceil(32);
        let chunks = (BLOCKS / across).clamp(1, touched.div_ceil(CHUNK));
        let chunk = touched.div_ceil(chunks);
        let chunks = touched.div_ceil(chunk);
        let parts = self.scratch(chunks * width * 4);
        let arguments = args::FactorCols {
            x,
            factor,
            parts: parts as _,
            chunk: chunk as u64,
            count: part.col_rows() as u32,
            part: args::MatrixPart::new(part),
        };
        let grid = Grid { blocks: [across, chunks, 1], threads: [32, 8], shared: 0 };
        self.launch("factor_cols", grid, arguments);
        add_parts(self, parts, width, chunks, cols);
    }

    fn fused_square_sums(&self, x: Tensor, part: &MatrixPart, out: Out) {
        let none = args::FusedSums {
            x: x.addr() as _,
            parts: null_mut(),
            factor: null(),
            row: null(),
            col: null(),
            mean: null(),
            eps: 0.0,
            part: args::MatrixPart::new(part),
        };
        fused_sums(self, x, part, none, out);
    }

    fn adafactor_scalars(&self, rule: &Adafactor, updates: Tensor, out: Out) {
        assert_eq!((out.to.numel(), out.add), (2, false), "Adafactor's step scalars");
        let arguments = args::AdafactorScalars {
            updates: updates.addr() as _,
            out: out.to.addr() as _,
            lr: rule.lr,
            beta2_decay: rule.beta2_decay,
            relative_step: rule.relative_step.into(),
        };
        self.launch("adafactor_scalars", Grid::line(1, 1), arguments);
    }

    fn move_second_moment(
        &self,
        scalars: Tensor,
        part: &MatrixPart,
        rows: Option<Tensor>,
        cols: Tensor,
        v: &SecondMoment,
    ) {
        let [row, col, mean] = addresses(part, v);
        let arguments = args::SecondMoment {
            scalars: scalars.addr() as _,
            row_sums: rows.map_or(0, Tensor::addr) as _,
            col_sums: cols.addr() as _,
            row: row as _,
            col: col as _,
            mean: mean as _,
            part: args::MatrixPart::new(part),
        };
        let grid = Grid::line(part.col_rows(), MOMENT_THREADS);
        self.launch("move_second_moment", grid, arguments);
    }

    fn adafactor_square_sums(
        &self,
        rule: &Adafactor,
        scalars: Tensor,
        grad: Tensor,
        part: &MatrixPart,
        v: &SecondMoment,
        out: Out,
    ) {
        let [row, col, mean] = addresses(part, v);
        let arguments = args::FusedSums {
            x: grad.addr() as _,
            parts: null_mut(),
            factor: scalars.addr() as _,
            row: row as _,
            col: col as _,
            mean: mean as _,
            eps: rule.eps,
            part: args::MatrixPart::new(part),
        };
        fused_sums(self, grad, part, arguments, out);
    }

    fn adafactor(
        &self,
        rule: &Adafactor,
        scalars: Tensor,
        grad: Tensor,
        part: &MatrixPart,
        v: &SecondMoment,
        squares: (Tensor, Option<Tensor>),
        master: Tensor,
        weight: Tensor,
    ) {
        for x in [grad, master, weight] {
            assert_eq!(x.numel(), part.len, "elements of the part");
        }
        assert_eq!(
            [grad.dtype, master.dtype],
            [DType::F32; 2],
            "gradient and master weight are f32"
        );
        let [row, col, mean] = addresses(part, v);
        let arguments = args::Adafactor {
            grad: grad.addr() as _,
            master: master.addr() as _,
            live: if weight == master { null_mut() } else { weight.addr() as _ },
            scalars: scalars.addr() as _,
            row: row as _,
            col: col as _,
            mean: mean as _,
            update: squares.0.addr() as _,
            weight: squares.1.map_or(0, Tensor::addr) as _,
            keep: rule.keep(),
            lr_scale: rule.lr_scale,
            eps: rule.eps,
            scale_eps: rule.scale_eps,
            clip_threshold: rule.clip_threshold,
            part: args::MatrixPart::new(part),
        };
        let rows = part.touched().len();
        if rows > 0 {
            let across = part.cols.div_ceil(256);
            let grid =
                Grid { blocks: [across, rows.min(8 * BLOCKS), 1], threads: [256, 1], shared: 0 };
            self.launch(typed!("adafactor", weight.dtype), grid, arguments);
        }
    }
}

/// Fills in the scratch.
fn fused_sums(cuda: &Cuda, x: Tensor, part: &MatrixPart, arguments: args::FusedSums, out: Out) {
    let count = part.fused.count();
    assert_eq!((x.numel(), x.dtype), (part.len, DType::F32), "elements of the part");
    assert_eq!((out.to.numel(), out.add), (count, true), "sums of fused matrices");
    let blocks = part.touched().len().min(BLOCKS);
    if blocks == 0 {
        return;
    }
    let parts = cuda.scratch(blocks * 3 * size_of::<f64>());
    let arguments = args::FusedSums { parts: parts as _, ..arguments };
    cuda.launch("fused_sums", Grid::line(blocks, 256), arguments);
    let (blocks, count) = (blocks as u32, count as u32);
    let arguments = args::FusedFinish { parts: parts as _, out: out.to.addr() as _, blocks, count };
    cuda.launch("fused_finish", Grid::line(1, 256), arguments);
}

/// Addresses of the means by row, by column, and over the whole; 0 where there are none.
fn addresses(part: &MatrixPart, v: &SecondMoment) -> [usize; 3] {
    let width = part.col_rows() * part.cols;
    match *v {
        SecondMoment::Full(v) => {
            assert_eq!((v.numel(), part.is_vector()), (width, true), "a vector's second moment");
            [0, v.addr(), 0]
        }
        SecondMoment::Factored { row, col, mean } => {
            let sizes = [row, col, mean].map(Tensor::numel);
            assert_eq!(sizes, [part.rows, width, part.fused.count()], "means of a matrix");
            [row, col, mean].map(Tensor::addr)
        }
    }
}

impl args::MatrixPart {
    fn new(part: &MatrixPart) -> args::MatrixPart {
        let [width0, width1, width2] = part.fused.widths().map(|width| width as u32);
        let [whole_rows, whole_cols] = part.whole;
        args::MatrixPart {
            first: part.first as u64,
            len: part.len as u64,
            rows: part.rows as u64,
            cols: part.cols as u32,
            width0,
            width1,
            width2,
            whole_rows: whole_rows as u64,
            whole_cols: whole_cols as u32,
            vector: part.is_vector().into(),
        }
    }
}
