//! 8-bit floats: maxima of lines, quantization, and products by cuBLASLt, whose operands are both
//! rows along the depth.

use super::launch::{Grid, typed, vector, wide};
use super::{Cuda, args, elementwise, gemm};
use crate::{Epilogue, Fp8Ops, Fp8Scaling, Lines, Out, Quantized, Tensor};
use base::{DType, Fp8};

/// What takes a scale for each row: Hopper, from this version of cuBLASLt on (NVIDIA's documentation
/// of `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`).
const HOPPER: i32 = 90;
const ROW_WISE: usize = 120_900;

/// Rows that a thread takes at least where it looks for maxima of columns.
const CHUNK: usize = 64;
/// Rows and columns of what a block turns.
const TILE: usize = 64;

impl Fp8Ops for Cuda {
    fn fp8_scaling(&self) -> Fp8Scaling {
        match self.capability == HOPPER && self.products.version() >= ROW_WISE {
            true => Fp8Scaling::RowWise,
            false => Fp8Scaling::TensorWise,
        }
    }

    fn line_maxima(&self, x: Tensor, lines: Lines, out: Out) {
        assert!(!out.add && out.to.numel() == lines.of(x)[0], "a maximum for each line");
        assert_eq!(out.to.dtype, DType::F32, "maxima");
        let vector = vector(x.cols, x.dtype, &[x.addr()]);
        let arguments = args::LineMaxima {
            x: x.addr() as _,
            maxima: out.to.addr() as _,
            rows: x.rows as u64,
            cols: x.cols as u32,
            vector: vector.into(),
        };
        let pieces = x.cols.div_ceil(if vector { wide(x.dtype) } else { 1 });
        match lines {
            Lines::Rows => {
                let grid = Grid::line(x.rows, pieces.next_multiple_of(32).min(256));
                self.launch(typed!("row_maxima", x.dtype), grid, arguments);
            }
            Lines::Columns => {
                self.memory.clear(&self.device, out.to.addr(), out.to.bytes());
                let down = x.rows.div_ceil(8 * CHUNK).clamp(1, 65_535);
                let blocks = [pieces.div_ceil(32), down, 1];
                let grid = Grid { blocks, threads: [32, 8], shared: 0 };
                self.launch(typed!("column_maxima", x.dtype), grid, arguments);
            }
        }
    }

    fn quantize(&self, x: Tensor, lines: Lines, maxima: Tensor, to: &Quantized) {
        to.check(x, lines, maxima);
        scales(self, maxima, to);
        let arguments = args::Fp8Codes {
            x: x.addr() as _,
            scales: to.scales.addr() as _,
            codes: to.codes.addr() as _,
            rows: x.rows as u64,
            cols: x.cols as u32,
            vector: 0,
        };
        let addresses = [x.addr(), to.codes.addr()];
        match lines {
            Lines::Rows => {
                let vector = vector(x.cols, x.dtype, &addresses);
                let grid = Grid::rows(x.rows, x.cols, if vector { wide(x.dtype) } else { 1 });
                let kernel = match to.format {
                    Fp8::E4M3 => typed!("fp8_rows" "_e4m3", x.dtype),
                    Fp8::E5M2 => typed!("fp8_rows" "_e5m2", x.dtype),
                };
                self.launch(kernel, grid, args::Fp8Codes { vector: vector.into(), ..arguments });
            }
            Lines::Columns => {
                let vector = vector(x.rows, DType::U8, &addresses);
                let blocks = [x.cols.div_ceil(TILE), x.rows.div_ceil(TILE), 1];
                let grid = Grid { blocks, threads: [256, 1], shared: 0 };
                let kernel = match to.format {
                    Fp8::E4M3 => typed!("fp8_columns" "_e4m3", x.dtype),
                    Fp8::E5M2 => typed!("fp8_columns" "_e5m2", x.dtype),
                };
                self.launch(kernel, grid, args::Fp8Codes { vector: vector.into(), ..arguments });
            }
        }
    }

    fn fp8_gemm(&self, a: &Quantized, b: &Quantized, c: Out, then: Epilogue) {
        gemm::fp8(self, a, b, c, then);
    }

    fn column_sums(&self, x: Tensor, sums: Out) {
        elementwise::bias_backward(self, x, sums);
    }
}

fn scales(cuda: &Cuda, maxima: Tensor, to: &Quantized) {
    let whole = to.scaling == Fp8Scaling::TensorWise;
    let arguments = args::Fp8Scales {
        maxima: maxima.addr() as _,
        scales: to.scales.addr() as _,
        lines: maxima.cols as u32,
        shares: maxima.rows as u32,
        largest: to.format.largest(),
        whole: whole.into(),
    };
    let blocks = if whole { 1 } else { maxima.cols.div_ceil(256).clamp(1, 1024) };
    cuda.launch("fp8_scales", Grid::line(blocks, 256), arguments);
}
