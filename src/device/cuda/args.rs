//! Arguments of the kernels: one struct for each, passed by value.
//!
//! This table is their only definition. `kernels/args.cuh` is generated from it, with the offset of
//! every field; a test fails if that file is stale (`UPDATE=1` in its environment rewrites it).

#[macro_use]
mod define;
mod dropout;
#[cfg(test)]
mod tests;
mod value;

pub use value::Argument;
pub(super) use value::arguments;

pub use cudarc::driver::sys::CUtensorMap as TensorMap;
use std::ffi::c_void;

kernel_args! {
    /// Mask of dropout, as `Dropout` of device/attend.rs defines it.
    struct DropoutMask {
        key: u64, first_sample: *const i64, seq: u64, first_row: u64,
        /// Random words below this bound drop their element; 0 drops none.
        bound: u32,
        /// Factor of the kept elements.
        kept: f32,
    }

    struct Copy {
        x: *const c_void, y: *mut c_void, numel: u64, add: u32, vector: u32,
    }

    struct Dropout {
        x: *const c_void, y: *mut c_void, rows: u64, cols: u32, add: u32, vector: u32,
        drop: DropoutMask,
    }

    struct Residual {
        x: *const c_void, branch: *const c_void,
        /// null: no bias
        bias: *const c_void,
        y: *mut c_void, rows: u64, cols: u32, vector: u32, drop: DropoutMask,
    }

    struct ColumnParts {
        x: *const c_void,
        /// Buffer for dropout(x), or null: x itself is summed.
        to: *mut c_void,
        /// [chunks, cols]
        parts: *mut f32,
        rows: u64, cols: u32,
        /// Rows per block.
        chunk: u32,
        vector: u32, drop: DropoutMask,
    }

    struct ColumnSums {
        parts: *const f32,
        /// Outputs, one per row of blocks, whose partial sums begin at column y·cols; null without one.
        outs: [*mut f32; 3],
        /// Stride of the partial sums, in elements.
        stride: u64,
        count: u32, cols: u32, add: [u32; 3],
    }

    struct Gelu {
        x: *const c_void, y: *mut c_void, numel: u64, add: u32, vector: u32,
    }

    struct Swiglu {
        /// [rows, 2·cols]: gate and value of each column of y
        x: *const c_void,
        /// y, or in backward dy, which is only read; of numel elements
        y: *mut c_void,
        /// backward: like x
        dx: *mut c_void,
        numel: u64, vector: u32,
    }

    struct QueryKey {
        /// [rows, qkv], and backward dy like it
        qkv: *const c_void, dy: *const c_void,
        /// y, or dx
        to: *mut c_void,
        /// [d], or null: no norm
        query_scale: *const c_void, key_scale: *const c_void,
        /// [rows], or null: no rotation
        positions: *const i32,
        /// [positions, d]: cosines, then sines
        table: *const f32,
        /// backward: [blocks, 2, d], partial sums of the gradients of the scales
        parts: *mut f32,
        rows: u64,
        /// Number of query heads, and of key/value heads.
        heads: u32, kv: u32, d: u32,
        /// Heads per block, counted over all rows.
        chunk: u32,
        eps: f32,
        /// Whether values are copied.
        copy: u32,
    }

    struct BiasRows {
        bias: *const c_void, x: *mut c_void, rows: u64, cols: u32, vector: u32,
    }

    struct LayerNorm {
        x: *const c_void, scale: *const c_void,
        /// null: an RMS norm
        shift: *const c_void,
        y: *mut c_void,
        /// [rows, 2]
        stats: *mut f32,
        rows: u64, cols: u32, eps: f32, add: u32, vector: u32,
    }

    struct ResidualNorm {
        x: *const c_void, branch: *const c_void,
        /// null: no bias
        bias: *const c_void,
        y: *mut c_void, scale: *const c_void,
        /// null: an RMS norm
        shift: *const c_void,
        h: *mut c_void,
        /// [rows, 2]
        stats: *mut f32,
        rows: u64, cols: u32, eps: f32, vector: u32, drop: DropoutMask,
    }

    struct LayerNormBackward {
        dy: *const c_void, x: *const c_void, stats: *const f32, scale: *const c_void,
        dx: *mut c_void,
        /// [blocks, 2 or 3, cols]: parts of dscale, dshift and, with a residual, dbias
        parts: *mut f32,
        rows: u64, cols: u32,
        /// Rows per block.
        chunk: u32,
        add: u32,
        /// Whether the norm has no mean and no shift.
        rms: u32,
    }

    struct NormResidualBackward {
        norm: LayerNormBackward,
        /// Null if it is dx and nothing is dropped.
        dbranch: *mut c_void,
        drop: DropoutMask,
    }

    struct Embed {
        ids: *const i32, table: *const c_void, y: *mut c_void, count: u64,
        /// First vocabulary entry of the table.
        first: i64,
        table_rows: i64, cols: u32, add: u32, vector: u32,
    }

    /// Stable sort of the positions of ids, and of their table rows, by one 8-bit digit of the row.
    struct EmbedSort {
        /// Input of the first digit; the next two are then null.
        ids: *const i32,
        from_order: *const i32, from_rows: *const i32,
        order: *mut i32, rows: *mut i32,
        /// [256, tiles]: count of each digit in each tile of 256 positions, then its first index
        starts: *mut u32,
        /// First vocabulary entry of the table.
        first: i64,
        table_rows: i64, count: u32, shift: u32,
    }

    struct EmbedBackward {
        dy: *const c_void,
        /// Sorted by `EmbedSort`.
        order: *const i32, rows: *const i32,
        dtable: *mut f32, count: u64, table_rows: i64, cols: u32, vector: u32,
    }

    struct CrossEntropy {
        logits: *mut c_void, targets: *const i32,
        /// Unused for the stats.
        weights: *const f32,
        /// [shares·rows, 3]
        stats: *mut f32,
        /// Null for the stats.
        losses: *mut f32,
        /// Null without the second loss.
        z_losses: *mut f32,
        /// Factor of the gradient; null if the logits are not overwritten by their gradient.
        scale: *const f32,
        /// First vocabulary entry of the columns.
        first: i64,
        rows: u64, cols: u32,
        /// Number of columns that are entries of the vocabulary.
        own: u32,
        /// Unused for the stats.
        shares: u32,
        vector: u32,
        /// Softcap of the logits; 0: none.
        cap: f32,
        /// Coefficient of the second loss.
        z: f32,
    }

    /// Sums of `count` tensors.
    struct SumParts {
        x: [*const c_void; 64], numel: [u64; 64],
        /// First block of each tensor, and the number of blocks.
        first: [u32; 65],
        /// Index of each tensor in `parts`.
        slot: [u32; 64],
        /// [tensors, 1 + SUM_PARTS]: number of partial sums, then these
        parts: *mut f64,
        count: u32,
        /// 0 sums the values, 1 their squares, 2 counts the zeros.
        term: u32, vector: u32,
    }

    struct SumFinish {
        /// [tensors, 1 + SUM_PARTS]
        parts: *const f64,
        out: *mut f32, add: u32,
    }

    struct CountFinish {
        /// [tensors, 1 + SUM_PARTS]
        parts: *const f64,
        lows: *mut f32, highs: *mut f32, high: f64,
    }

    struct DigestParts {
        x: *const c_void, parts: *mut u64, numel: u64, vector: u32,
    }

    struct DigestFinish {
        parts: *const u64, out: *mut u64, count: u64,
    }

    struct Clip {
        sums: *const f32,
        /// Loss scale of the gradients that were squared.
        scale: *const f32,
        /// [2]: norm, factor
        out: *mut f32,
        count: u32, max_norm: f32,
    }

    struct LossScaleStep {
        /// NaN after an overflow; set to NaN if the scale is stuck.
        factor: *mut f32,
        /// 0 updated, 1 skipped, 2 stuck
        status: *mut f32,
        scale: *mut f32,
        /// [5]: updates in a row, overflows left, updates, skipped, stuck
        counts: *mut i64,
        window: i64, hysteresis: i64, growth: f32, min: f32,
    }

    struct SkipAbove {
        loss: *const f32, norm: *const f32,
        /// Set to NaN if the loss or the norm is above its limit.
        factor: *mut f32,
        /// Status of `LossScaleStep`; 3 if this op skips the step.
        status: *mut f32,
        /// Counts of `LossScaleStep`.
        counts: *mut i64,
        max_loss: f32, max_norm: f32,
    }

    struct AdamScalars {
        updates: *const i64,
        /// [2]: lr / (1 − β₁ᵗ), 1 / √(1 − β₂ᵗ)
        out: *mut f32,
        lr: f32, beta1: f32, beta2: f32,
    }

    /// AdamW of `count` tensors.
    struct AdamW {
        grad: [*const c_void; 64], master: [*mut f32; 64], m: [*mut f32; 64], v: [*mut f32; 64],
        /// Null if it is the master.
        weight: [*mut c_void; 64],
        numel: [u64; 64],
        /// 1 − lr·weight_decay; and a factor of the step
        keep: [f32; 64], lr_scale: [f32; 64],
        /// First piece of `ADAMW_PIECE` elements of each tensor, and the number of pieces.
        first: [u32; 65],
        /// [3]: factor, then the two of `AdamScalars`
        scalars: *const f32,
        beta1: f32, beta2: f32, eps: f32, count: u32, vector: u32,
    }

    struct Adam8bit {
        grad: *const c_void, master: *mut f32,
        /// [numel], [numel / block]
        m_codes: *mut u8, m_scales: *mut f32,
        /// The same for the square root of v.
        v_codes: *mut u8, v_scales: *mut f32,
        /// Null if it is the master.
        weight: *mut c_void,
        /// [3]: factor, then the two of `AdamScalars`
        scalars: *const f32,
        numel: u64,
        /// 1 − lr·weight_decay; and a factor of the step
        keep: f32, lr_scale: f32,
        beta1: f32, beta2: f32, eps: f32,
        /// Elements per scale: 16, 32 or 64.
        block: u32,
    }

    /// Rank's part of a matrix, as `MatrixPart` of device/adafactor.rs defines it.
    struct MatrixPart {
        first: u64, len: u64,
        /// Rows of the share; 1 for a vector.
        rows: u64,
        cols: u32,
        /// Rows of each fused matrix in turn; for a vector: columns.
        width0: u32, width1: u32, width2: u32,
        /// Rows of the whole matrix; 1 for a vector.
        whole_rows: u64,
        whole_cols: u32,
        vector: u32,
    }

    struct FactorRows {
        x: *const f32, factor: *const f32,
        /// [rows]
        rows: *mut f32,
        part: MatrixPart,
    }

    struct FactorCols {
        x: *const f32, factor: *const f32,
        /// [chunks, fused, cols]
        parts: *mut f32,
        /// Rows per block.
        chunk: u64,
        /// Rows of the sums: fused matrices, or 1.
        count: u32,
        part: MatrixPart,
    }

    struct FusedSums {
        x: *const f32,
        /// [blocks, 3]
        parts: *mut f64,
        /// Factor of the gradient, to sum U²; null: x² is summed.
        factor: *const f32,
        /// Means by row; null for a vector.
        row: *const f32,
        col: *const f32, mean: *const f32, eps: f32,
        part: MatrixPart,
    }

    struct FusedFinish {
        /// [blocks, 3]
        parts: *const f64,
        /// [fused]: accumulates
        out: *mut f32,
        blocks: u32, count: u32,
    }

    struct AdafactorScalars {
        updates: *const i64,
        /// [2]: 1 − β̂, ρ
        out: *mut f32,
        lr: f32, beta2_decay: f32, relative_step: u32,
    }

    struct SecondMoment {
        /// [2]: factor, 1 − β̂
        scalars: *const f32,
        /// Null for a vector.
        row_sums: *const f32,
        col_sums: *const f32,
        /// Null for a vector.
        row: *mut f32,
        col: *mut f32,
        /// Null for a vector.
        mean: *mut f32,
        part: MatrixPart,
    }

    struct Adafactor {
        grad: *const f32, master: *mut f32,
        /// Null if it is the master.
        weight: *mut c_void,
        /// [3]: factor, 1 − β̂, ρ
        scalars: *const f32,
        /// Null for a vector.
        row: *const f32,
        col: *const f32, mean: *const f32,
        /// [fused]: Σ U²
        update_squares: *const f32,
        /// [fused]: Σ θ², or null: steps are not scaled by it
        weight_squares: *const f32,
        /// 1 − lr·weight_decay; and a factor of the step
        keep: f32, lr_scale: f32,
        eps: f32, scale_eps: f32, clip_threshold: f32,
        part: MatrixPart,
    }

    struct Momentum {
        grad: *const f32, m: *mut f32, out: *mut c_void, factor: *const f32, numel: u64,
        momentum: f32, nesterov: u32, vector: u32,
    }

    /// Matrix of several that are fused by rows, as `FusedMatrix` of device/muon.rs defines it.
    struct FusedRows {
        /// [cols / share, all_rows, share] and [rows, cols]; `back`: copies `one` into `all`
        all: *mut c_void, one: *mut c_void,
        all_rows: u64, rows: u64, cols: u32, share: u32,
        /// First row of the matrix; its rows are in groups of `width`, `period` rows apart.
        first: u32, width: u32, period: u32, back: u32, vector: u32,
    }

    struct ScaleToNorm { x: *mut c_void, sum: *const f32, numel: u64, eps: f32, vector: u32, }
    struct Blend { x: *const c_void, y: *mut c_void, numel: u64, a: f32, b: f32, vector: u32, }
    struct MuonUpdate {
        /// `weight` is null if it is the master.
        direction: *const c_void, master: *mut f32, weight: *mut c_void,
        factor: *const f32, numel: u64, keep: f32, step: f32, vector: u32,
    }

    /// Maxima of the magnitudes of x [rows, cols] by row and by column, for 8-bit floats.
    struct LineMaxima {
        x: *const c_void,
        /// [rows] and [cols], initially 0, or null: not requested
        of_rows: *mut f32, of_columns: *mut f32,
        rows: u64, cols: u32, vector: u32,
    }

    struct Fp8Scales {
        maxima: *const f32, scales: *mut f32, lines: u32, shares: u32, largest: f32, whole: u32,
    }

    struct Fp8Codes {
        x: *const c_void,
        /// [rows], u8 [rows, cols]; in `fp8_columns_*` null: no codes of rows
        row_scales: *const f32, row_codes: *mut c_void,
        /// [cols], u8 [cols, rows]
        column_scales: *const f32, column_codes: *mut c_void,
        rows: u64, cols: u32, vector: u32,
        /// Whether lines of columns may be written 16 bytes at a time.
        wide: u32,
    }

    /// Rows scaled by their own maxima.
    struct Fp8OwnRows {
        x: *const c_void, scales: *mut f32, codes: *mut c_void,
        /// Maxima of columns [cols], initially 0, or null: not requested
        of_columns: *mut f32,
        rows: u64, cols: u32, largest: f32, vector: u32,
    }

    struct Axpy {
        x: *const f32, y: *mut f32, factor: *const f32, numel: u64, a: f32, add: u32, vector: u32,
    }

    struct Orthogonalize {
        /// [rows, cols] each
        x: [*mut f32; 8],
        rows: [u32; 8],
        cols: u32,
    }

    struct Attention {
        /// [N, kv, heads / kv + 2, d]: queries, their key, their value
        qkv: *const c_void,
        /// [N, heads, d]
        y: *mut c_void,
        /// [N, heads]
        lse: *mut f32,
        /// [N, heads, d]
        dy: *const c_void,
        /// [N, heads]: Σ dy·y
        delta: *mut f32,
        /// Like qkv
        dqkv: *mut c_void,
        /// [N, 2], or null: causal
        ranges: *const i32,
        /// [heads], or null
        slopes: *const f32,
        /// N
        rows: u64,
        seq: u32, heads: u32,
        /// Number of key/value heads, and query heads per key/value head.
        kv: u32, serves: u32,
        /// 2^32 / serves, rounded up, or 0 if serves is 1; __umulhi(head, inverse) is head / serves
        inverse: u32,
        first_head: u32, d: u32,
        /// Maximum number of keys that a query sees, including its own; seq without a window
        window: u32,
        /// Factor of the scores, usually 1/√d
        scale: f32,
        drop: DropoutMask,
    }

    struct AttentionHopper {
        /// [d, 3·heads, seq, samples] and [d, heads, seq, samples], in boxes of 64 positions
        qkv: TensorMap, dy: TensorMap, attention: Attention,
        /// Whether forward's warpgroups issue their products in alternation.
        ping_pong: u32,
    }
}
