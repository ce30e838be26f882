//! 8-bit floats: maxima of lines, quantization, and products by cuBLASLt, whose operands are both
//! rows along the depth.

use super::launch::{Grid, typed, vector, wide};
use super::{Cuda, args, elementwise, gemm};
use crate::{Epilogue, Fp8Ops, Fp8Scaling, Lines, Out, Quantized, Tensor};
use base::{DType, Fp8};

/// Compute capability and first cuBLASLt whose products take a scale for each row (NVIDIA's
/// documentation of `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`).
const HOPPER: i32 = 90;
const ROW_WISE: usize = 120_900;

/// Minimum rows of a warp that searches for maxima.
const CHUNK: usize = 16;
/// Warps of such a block.
const WARPS: usize = 8;
/// Rows and columns that a block transposes.
const TILE: usize = 64;
/// Threads of a block that quantizes rows by their own maxima, and the most blocks: four for each of
/// a Hopper's 132 SMs.
pub(super) const ROW_THREADS: usize = 512;
const ROW_BLOCKS: usize = 528;

/// The kernel of a format and a dtype.
macro_rules! coded {
    ($name:literal, $format:expr, $dtype:expr) => {
        match $format {
            Fp8::E4M3 => typed!($name "_e4m3", $dtype),
            Fp8::E5M2 => typed!($name "_e5m2", $dtype),
        }
    };
}

impl Fp8Ops for Cuda {
    fn fp8_scaling(&self) -> Fp8Scaling {
        match self.capability == HOPPER && self.products.version() >= ROW_WISE {
            true => Fp8Scaling::RowWise,
            false => Fp8Scaling::TensorWise,
        }
    }

    fn line_maxima(&self, x: Tensor, out: [Option<Out>; 2]) {
        let [rows, columns] = [0, 1].map(|at| blank(self, x, Lines::BOTH[at], out[at]));
        let vector = vector(x.cols, x.dtype, &[x.addr()]);
        let arguments = args::LineMaxima {
            x: x.addr() as _,
            of_rows: rows as _,
            of_columns: columns as _,
            rows: x.rows as u64,
            cols: x.cols as u32,
            vector: vector.into(),
        };
        let pieces = x.cols.div_ceil(if vector { wide(x.dtype) } else { 1 });
        let down = x.rows.div_ceil(WARPS * CHUNK).clamp(1, 65_535);
        let grid = Grid { blocks: [pieces.div_ceil(32), down, 1], threads: [32, WARPS], shared: 0 };
        self.launch(typed!("line_maxima", x.dtype), grid, arguments);
    }

    fn quantize(&self, x: Tensor, to: [Option<(Tensor, Quantized)>; 2]) {
        for (lines, to) in Lines::BOTH.into_iter().zip(&to) {
            let Some((maxima, to)) = to else { continue };
            to.check(x, lines, *maxima);
            scales(self, *maxima, to);
        }
        let [rows, columns] = to.map(|to| to.map(|(_, to)| to));
        let places =
            |to: Option<Quantized>| to.map_or([0; 2], |q| [q.scales.addr(), q.codes.addr()]);
        let ([row_scales, row_codes], [column_scales, column_codes]) =
            (places(rows), places(columns));
        let Some(Quantized { format, .. }) = columns.or(rows) else { return };
        assert!(rows.is_none_or(|rows| rows.format == format), "rows and columns of one format");
        let across = vector(x.cols, x.dtype, &[x.addr(), row_codes]);
        let arguments = args::Fp8Codes {
            x: x.addr() as _,
            row_scales: row_scales as _,
            row_codes: row_codes as _,
            column_scales: column_scales as _,
            column_codes: column_codes as _,
            rows: x.rows as u64,
            cols: x.cols as u32,
            vector: across.into(),
            wide: vector(x.rows, DType::U8, &[column_codes]).into(),
        };
        if columns.is_some() {
            let blocks = [x.cols.div_ceil(TILE), x.rows.div_ceil(TILE), 1];
            let grid = Grid { blocks, threads: [256, 1], shared: 0 };
            self.launch(coded!("fp8_columns", format, x.dtype), grid, arguments);
        } else {
            let grid = Grid::rows(x.rows, x.cols, if across { wide(x.dtype) } else { 1 });
            self.launch(coded!("fp8_rows", format, x.dtype), grid, arguments);
        }
    }

    fn quantize_rows(&self, x: Tensor, to: &Quantized, columns: Option<Out>) {
        to.check_rows(x);
        let shared = if columns.is_some() { x.cols * size_of::<f32>() } else { 0 };
        if shared > self.device.shared_memory {
            // Rows too wide for that: in two reads.
            let maxima = Tensor::at(self.scratch(x.rows * size_of::<f32>()), 1, x.rows, DType::F32);
            self.line_maxima(x, [Some(maxima.set()), columns]);
            return self.quantize(x, [Some((maxima, *to)), None]);
        }
        let arguments = args::Fp8OwnRows {
            x: x.addr() as _,
            scales: to.scales.addr() as _,
            codes: to.codes.addr() as _,
            of_columns: blank(self, x, Lines::Columns, columns) as _,
            rows: x.rows as u64,
            cols: x.cols as u32,
            largest: to.format.largest(),
            vector: vector(x.cols, x.dtype, &[x.addr(), to.codes.addr()]).into(),
        };
        let blocks = x.rows.div_ceil(ROW_THREADS / 32).clamp(1, ROW_BLOCKS);
        let grid = Grid::line(blocks, ROW_THREADS).with_shared(shared);
        self.launch(coded!("fp8_own_rows", to.format, x.dtype), grid, arguments);
    }

    fn fp8_gemm(&self, a: &Quantized, b: &Quantized, c: Out, then: Epilogue) {
        gemm::fp8(self, a, b, c, then);
    }

    fn column_sums(&self, x: Tensor, sums: Out) {
        elementwise::bias_backward(self, x, sums);
    }
}

/// The address of maxima, which are 0 from now on; 0 where none are asked for.
fn blank(cuda: &Cuda, x: Tensor, lines: Lines, out: Option<Out>) -> usize {
    let Some(Out { to, add }) = out else { return 0 };
    assert!(!add && to.numel() == lines.of(x)[0], "a maximum for each line");
    assert_eq!(to.dtype, DType::F32, "maxima");
    cuda.memory.clear(&cuda.device, to.addr(), to.bytes());
    to.addr()
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
