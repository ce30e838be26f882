//! Matrix products, through the `gemm` crate's f32 kernels.
//!
//! bf16 operands are widened panel by panel in the workspace. Another kernel (AMX) goes where
//! `multiply` is called.

use super::Cpu;
use super::math;
use super::memory::{BLOCK, Block, load, put, store};
use super::parallel::blocks;
use crate::base::DType;
use crate::device::{Epilogue, Gemm, Out, Tensor};
use std::ops::Range;

/// Rows, columns and depth of a widened panel: three of these are 12 MiB of workspace.
const PANEL: usize = 1024;

pub(super) fn gemm(cpu: &Cpu, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue) {
    let (m, n, k) = shape(kind, a, b);
    assert_eq!((c.to.rows, c.to.cols), (m, n), "{kind:?} of {a:?} and {b:?} into {:?}", c.to);
    assert_eq!(a.dtype, b.dtype, "dtypes of A and B");
    assert!(c.to.dtype == a.dtype || c.to.dtype == DType::F32, "dtype of C");
    assert!(!c.add || matches!(then, Epilogue::Nothing), "accumulation has no epilogue");
    if a.dtype == DType::F32 {
        // What BiasGelu stores before gelu is also where it is summed up.
        let sums = if let Epilogue::BiasGelu { pre, .. } = then { pre } else { c.to };
        assert_eq!((sums.rows, sums.cols, sums.dtype), (m, n, DType::F32), "C and pre");
        let dims = Dims { m, n, k, row: n };
        multiply(cpu, dims, View::of(kind.lhs(), a), View::of(kind.rhs(), b), sums, c.add);
        if !matches!(then, Epilogue::Nothing) {
            finish(cpu, sums, n, [0..m, 0..n], c, then);
        }
    } else {
        widened(cpu, kind, a, b, c, then);
    }
}

/// Rows and columns of C, and the depth.
fn shape(kind: Gemm, a: Tensor, b: Tensor) -> (usize, usize, usize) {
    let (m, k) = if kind.lhs() { (a.cols, a.rows) } else { (a.rows, a.cols) };
    let (n, depth) = if kind.rhs() { (b.rows, b.cols) } else { (b.cols, b.rows) };
    assert_eq!(k, depth, "depth of A and B in {kind:?}: {a:?}, {b:?}");
    (m, n, k)
}

impl Gemm {
    /// Whether A is transposed.
    fn lhs(self) -> bool {
        self == Gemm::TN
    }

    /// Whether B is transposed.
    fn rhs(self) -> bool {
        self == Gemm::NT
    }
}

/// An f32 operand: an address, and the strides of its rows and columns as the product sees them.
#[derive(Clone, Copy)]
struct View {
    addr: usize,
    row: isize,
    col: isize,
}

impl View {
    fn of(transposed: bool, x: Tensor) -> View {
        let row = x.cols as isize;
        let (row, col) = if transposed { (1, row) } else { (row, 1) };
        View { addr: x.addr(), row, col }
    }
}

/// C is m by n with `row` elements from one row to the next.
#[derive(Clone, Copy)]
struct Dims {
    m: usize,
    n: usize,
    k: usize,
    row: usize,
}

/// C (+)= A·B, all f32.
fn multiply(cpu: &Cpu, dims: Dims, a: View, b: View, c: Tensor, add: bool) {
    let Dims { m, n, k, row } = dims;
    assert!(m == 0 || (m - 1) * row + n <= c.numel());
    let run = |how| {
        let (from_a, from_b) = (a.addr as *const f32, b.addr as *const f32);
        let to = c.addr() as *mut f32;
        // SAFETY: shapes were checked against the tensors; C overlaps neither A nor B.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                to,
                1,
                row as isize,
                add,
                from_a,
                a.col,
                a.row,
                from_b,
                b.col,
                b.row,
                1.0,
                1.0,
                false,
                false,
                false,
                how,
            );
        }
    };
    match &cpu.pool {
        Some(pool) => {
            let threads = cpu.threads;
            pool.install(|| run(gemm::Parallelism::Rayon(threads)));
        }
        None => run(gemm::Parallelism::None),
    }
}

/// The product of bf16 operands, block of C by block of C.
fn widened(cpu: &Cpu, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue) {
    let (m, n, k) = shape(kind, a, b);
    let [side_m, side_n, side_k] = [m, n, k].map(|side| side.min(PANEL));
    let area = (side_m * side_k).max(side_n * side_k).max(side_m * side_n);
    cpu.workspace.with(3, area, |scratch| {
        let [wide_a, wide_b, sums] = [0, 1, 2].map(|i| scratch.tensor(i));
        for rows in pieces(m) {
            for cols in pieces(n) {
                for depth in pieces(k) {
                    let a = panel(cpu, a, kind.lhs(), rows.clone(), depth.clone(), wide_a);
                    let b = panel(cpu, b, kind.rhs(), depth.clone(), cols.clone(), wide_b);
                    let (m, n, k) = (rows.len(), cols.len(), depth.len());
                    multiply(cpu, Dims { m, n, k, row: n }, a, b, sums, depth.start > 0);
                }
                if k == 0 {
                    super::elementwise::zero(cpu, sums);
                }
                finish(cpu, sums, cols.len(), [rows.clone(), cols], c, then);
            }
        }
    });
}

fn pieces(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(PANEL).map(move |at| at..len.min(at + PANEL))
}

/// Widens the rows and columns (as the product sees them) of an operand.
fn panel(
    cpu: &Cpu,
    x: Tensor,
    transposed: bool,
    rows: Range<usize>,
    cols: Range<usize>,
    to: Tensor,
) -> View {
    let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
    let (count, width) = (rows.len(), cols.len());
    cpu.each_rows(count, width, |range| {
        let mut buffer: Block = [0.0; BLOCK];
        for i in range {
            for piece in blocks(0..width) {
                let buffer = &mut buffer[..piece.len()];
                load(x, (rows.start + i) * x.cols + cols.start + piece.start, buffer);
                store(buffer, to, i * width + piece.start);
            }
        }
    });
    View::of(transposed, Tensor::at(to.addr(), count, width, DType::F32))
}

/// Puts the epilogue of `sums`, which are those rows and columns of C, into C. `sums` may be C or
/// `pre` itself.
fn finish(
    cpu: &Cpu,
    sums: Tensor,
    row: usize,
    [rows, cols]: [Range<usize>; 2],
    c: Out,
    then: Epilogue,
) {
    cpu.each_rows(rows.len(), cols.len(), |range| {
        let (mut x, mut other): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
        for i in range {
            for piece in blocks(0..cols.len()) {
                let (x, other) = (&mut x[..piece.len()], &mut other[..piece.len()]);
                let col = cols.start + piece.start;
                let at = (rows.start + i) * c.to.cols + col;
                load(sums, i * row + piece.start, x);
                match then {
                    Epilogue::Nothing => {}
                    Epilogue::Bias(bias) => {
                        load(bias, col, other);
                        math::add(other, x);
                    }
                    Epilogue::BiasGelu { bias, pre, gelu } => {
                        load(bias, col, other);
                        math::add(other, x);
                        store(x, pre, at);
                        // Of what was stored, so that `gelu` rebuilds the same bits.
                        load(pre, at, x);
                        math::gelu(gelu, x);
                    }
                    Epilogue::GeluBackward { pre, gelu } => {
                        load(pre, at, other);
                        math::gelu_backward(gelu, other, x);
                    }
                }
                put(x, c, at);
            }
        }
    });
}
