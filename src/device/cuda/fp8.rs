//! 8-bit floats: maxima of lines, quantization, and products by cuBLASLt, whose operands are both
//! rows along the depth.

use super::launch::{Grid, typed, vector, wide};
use super::{Cuda, args};
use crate::{Fp8Scaling, Out, Quantized, Tensor, op};
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

/// Granularity of scales in products.
pub(super) fn scaling(cuda: &Cuda) -> Fp8Scaling {
    if cuda.capability == HOPPER && cuda.products.version() >= ROW_WISE {
        Fp8Scaling::RowWise
    } else {
        Fp8Scaling::TensorWise
    }
}

pub(super) fn line_maxima(cuda: &Cuda, &op::LineMaxima { x, rows, columns }: &op::LineMaxima) {
    let [rows, columns] = [rows, columns].map(|out| blank(cuda, out));
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
    cuda.launch(typed!("line_maxima", x.dtype), grid, arguments);
}

pub(super) fn quantize(cuda: &Cuda, &op::Quantize { x, rows, columns }: &op::Quantize) {
    for (maxima, to) in rows.iter().chain(&columns) {
        scales(cuda, *maxima, to);
    }
    let [rows, columns] = [rows, columns].map(|to| to.map(|(_, to)| to));
    let places = |to: Option<Quantized>| to.map_or([0; 2], |q| [q.scales.addr(), q.codes.addr()]);
    let ([row_scales, row_codes], [column_scales, column_codes]) = (places(rows), places(columns));
    let Some(Quantized { format, .. }) = columns.or(rows) else { return };
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
        cuda.launch(coded!("fp8_columns", format, x.dtype), grid, arguments);
    } else {
        let grid = Grid::rows(x.rows, x.cols, if across { wide(x.dtype) } else { 1 });
        cuda.launch(coded!("fp8_rows", format, x.dtype), grid, arguments);
    }
}

pub(super) fn quantize_rows(cuda: &Cuda, op: &op::QuantizeRows) {
    let op::QuantizeRows { x, to, columns } = *op;
    let shared = if columns.is_some() { x.cols * size_of::<f32>() } else { 0 };
    if shared > cuda.device.shared_memory {
        // Rows too wide for that: in two reads.
        let maxima = Tensor::at(cuda.scratch(x.rows * size_of::<f32>()), 1, x.rows, DType::F32);
        line_maxima(cuda, &op::LineMaxima { x, rows: Some(maxima.set()), columns });
        return quantize(cuda, &op::Quantize { x, rows: Some((maxima, to)), columns: None });
    }
    let arguments = args::Fp8OwnRows {
        x: x.addr() as _,
        scales: to.scales.addr() as _,
        codes: to.codes.addr() as _,
        of_columns: blank(cuda, columns) as _,
        rows: x.rows as u64,
        cols: x.cols as u32,
        largest: to.format.largest(),
        vector: vector(x.cols, x.dtype, &[x.addr(), to.codes.addr()]).into(),
    };
    let blocks = x.rows.div_ceil(ROW_THREADS / 32).clamp(1, ROW_BLOCKS);
    let grid = Grid::line(blocks, ROW_THREADS).with_shared(shared);
    cuda.launch(coded!("fp8_own_rows", to.format, x.dtype), grid, arguments);
}

/// The address of maxima, which are 0 from now on; 0 where none are asked for.
fn blank(cuda: &Cuda, out: Option<Out>) -> usize {
    let Some(Out { to, .. }) = out else { return 0 };
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
