//! 8-bit floats: maxima of lines, quantization, and products by cuBLASLt, whose operands are both
//! rows along the depth.

use super::Cuda;
use super::args::arguments;
use super::launch::{Grid, elements_per_move, typed, vector};
use crate::{Fp8Scaling, Out, Quantized, QuantizedBy, Tensor, op};
use base::{DType, Fp8};

/// Compute capability and first cuBLASLt whose products take a scale for each row (NVIDIA's
/// documentation of `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`).
const HOPPER: i32 = 90;
const ROW_WISE: usize = 120_900;

/// Minimum rows of a warp that searches for maxima.
const CHUNK: usize = 16;
/// Warps of a block that searches for maxima.
const WARPS: usize = 8;
/// Rows and columns that a block transposes.
const TILE: usize = 64;
/// Threads of a block that quantizes rows by their own maxima, and maximum number of blocks: four per
/// SM of a Hopper with 132.
pub(super) const ROW_THREADS: usize = 512;
const ROW_BLOCKS: usize = 528;

/// Kernel of a format and a dtype.
macro_rules! coded {
    ($name:literal, $format:expr, $dtype:expr) => {
        match $format {
            Fp8::E4M3 => typed!($name "_e4m3", $dtype),
            Fp8::E5M2 => typed!($name "_e5m2", $dtype),
        }
    };
}

/// Granularity of scales in products.
pub(super) fn scaling(cuda: &Cuda) -> Fp8Scaling {
    if cuda.capability == HOPPER && cuda.products.version() >= ROW_WISE {
        Fp8Scaling::RowWise
    } else {
        Fp8Scaling::TensorWise
    }
}

pub(super) fn line_maxima(cuda: &Cuda, &op::LineMaxima { x, rows, columns }: &op::LineMaxima) {
    for out in rows.iter().chain(&columns) {
        clear(cuda, out);
    }
    let vector = vector(x.cols, x.dtype, [x]);
    let arguments = arguments!(LineMaxima {
        x,
        of_rows: rows,
        of_columns: columns,
        rows: x.rows,
        cols: x.cols,
        vector,
    });
    let pieces = x
        .cols
        .div_ceil(if vector { elements_per_move(x.dtype) } else { 1 });
    let down = x.rows.div_ceil(WARPS * CHUNK).clamp(1, 65_535);
    let grid = Grid { blocks: [pieces.div_ceil(32), down, 1], threads: [32, WARPS], shared: 0 };
    cuda.launch(typed!("line_maxima", x.dtype), grid, arguments);
}

pub(super) fn quantize(cuda: &Cuda, &op::Quantize { x, rows, columns }: &op::Quantize) {
    for QuantizedBy { maxima, to } in rows.iter().chain(&columns) {
        scales(cuda, *maxima, &to.to);
    }
    let [rows, columns] = [rows, columns].map(|lines| lines.map(|lines| lines.to.to));
    let Some(Quantized { format, .. }) = columns.or(rows) else { return };
    let [row_codes, column_codes] = [rows, columns].map(|to| to.map(|to| to.codes));
    let (grid, vector_rows) = Grid::rows(x, row_codes);
    let arguments = arguments!(Fp8Codes {
        x,
        row_scales: rows.map(|to| to.scales),
        row_codes,
        column_scales: columns.map(|to| to.scales),
        column_codes,
        rows: x.rows,
        cols: x.cols,
        vector: vector_rows,
        wide: vector(x.rows, DType::U8, column_codes),
    });
    if columns.is_some() {
        let blocks = [x.cols.div_ceil(TILE), x.rows.div_ceil(TILE), 1];
        assert!(
            blocks[1] <= 65_535,
            "{} rows in a launch: CUDA's grid has at most 65,535 blocks down",
            x.rows
        );
        let grid = Grid { blocks, threads: [256, 1], shared: 0 };
        cuda.launch(coded!("fp8_columns", format, x.dtype), grid, arguments);
    } else {
        cuda.launch(coded!("fp8_rows", format, x.dtype), grid, arguments);
    }
}

pub(super) fn quantize_rows(cuda: &Cuda, op: &op::QuantizeRows) {
    let op::QuantizeRows { x, to: out, columns } = *op;
    let to = out.to;
    let shared = if columns.is_some() { x.cols * size_of::<f32>() } else { 0 };
    if shared > cuda.device.shared_memory {
        // The maxima of such wide rows do not fit: read twice.
        let maxima = Tensor::at(cuda.scratch(x.rows * size_of::<f32>()), 1, x.rows, DType::F32);
        line_maxima(cuda, &op::LineMaxima { x, rows: Some(maxima.set()), columns });
        let rows = Some(QuantizedBy { maxima, to: out });
        return quantize(cuda, &op::Quantize { x, rows, columns: None });
    }
    columns.iter().for_each(|out| clear(cuda, out));
    let arguments = arguments!(Fp8OwnRows {
        x,
        scales: to.scales,
        codes: to.codes,
        of_columns: columns,
        rows: x.rows,
        cols: x.cols,
        largest: to.format.largest(),
        vector: vector(x.cols, x.dtype, [x, to.codes]),
    });
    let blocks = x.rows.div_ceil(ROW_THREADS / 32).clamp(1, ROW_BLOCKS);
    let grid = Grid::line(blocks, ROW_THREADS).with_shared(shared);
    cuda.launch(coded!("fp8_own_rows", to.format, x.dtype), grid, arguments);
}

/// Sets maxima to 0.
fn clear(cuda: &Cuda, Out { to, .. }: &Out) {
    cuda.memory.clear(&cuda.device, to.addr(), to.bytes());
}

fn scales(cuda: &Cuda, maxima: Tensor, to: &Quantized) {
    let whole = to.scaling == Fp8Scaling::TensorWise;
    let scales = to.scales;
    let largest = to.format.largest();
    let lines = maxima.cols;
    let shares = maxima.rows;
    let arguments = arguments!(Fp8Scales { maxima, scales, lines, shares, largest, whole });
    let blocks = if whole { 1 } else { maxima.cols.div_ceil(256).clamp(1, 1024) };
    cuda.launch("fp8_scales", Grid::line(blocks, 256), arguments);
}
