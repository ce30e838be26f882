// Arguments of the kernels. Made from src/device/cuda/args.rs:
//     UPDATE=1 cargo test --lib kernel_arguments
#pragma once

// Tensor map of cuTensorMapEncodeTiled; must be passed as a kernel's argument.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

#define AT(STRUCT, FIELD) __builtin_offsetof(STRUCT, FIELD)

// Mask of dropout, as `Dropout` of device/attend.rs defines it.
struct DropoutMask {
    uint64_t key;
    const int64_t* first_sample;
    uint64_t seq;
    uint64_t first_row;
    // Random words below this bound drop their element; 0 drops none.
    uint32_t bound;
    // Factor of the kept elements.
    float kept;
};
static_assert(AT(DropoutMask, key) == 0 && AT(DropoutMask, first_sample) == 8 &&
              AT(DropoutMask, seq) == 16 && AT(DropoutMask, first_row) == 24 &&
              AT(DropoutMask, bound) == 32 && AT(DropoutMask, kept) == 36 &&
              sizeof(DropoutMask) == 40, "layout");

struct Copy {
    const void* x;
    void* y;
    uint64_t numel;
    uint32_t add;
    uint32_t vector;
};
static_assert(AT(Copy, x) == 0 && AT(Copy, y) == 8 && AT(Copy, numel) == 16 &&
              AT(Copy, add) == 24 && AT(Copy, vector) == 28 &&
              sizeof(Copy) == 32, "layout");

struct Dropout {
    const void* x;
    void* y;
    uint64_t rows;
    uint32_t cols;
    uint32_t add;
    uint32_t vector;
    DropoutMask drop;
};
static_assert(AT(Dropout, x) == 0 && AT(Dropout, y) == 8 && AT(Dropout, rows) == 16 &&
              AT(Dropout, cols) == 24 && AT(Dropout, add) == 28 && AT(Dropout, vector) == 32 &&
              AT(Dropout, drop) == 40 &&
              sizeof(Dropout) == 80, "layout");

struct Residual {
    const void* x;
    const void* branch;
    // null: no bias
    const void* bias;
    void* y;
    uint64_t rows;
    uint32_t cols;
    uint32_t vector;
    DropoutMask drop;
};
static_assert(AT(Residual, x) == 0 && AT(Residual, branch) == 8 && AT(Residual, bias) == 16 &&
              AT(Residual, y) == 24 && AT(Residual, rows) == 32 && AT(Residual, cols) == 40 &&
              AT(Residual, vector) == 44 && AT(Residual, drop) == 48 &&
              sizeof(Residual) == 88, "layout");

struct ColumnParts {
    const void* x;
    // Buffer for dropout(x), or null: x itself is summed.
    void* to;
    // [chunks, cols]
    float* parts;
    uint64_t rows;
    uint32_t cols;
    // Rows per block.
    uint32_t chunk;
    uint32_t vector;
    DropoutMask drop;
};
static_assert(AT(ColumnParts, x) == 0 && AT(ColumnParts, to) == 8 &&
              AT(ColumnParts, parts) == 16 && AT(ColumnParts, rows) == 24 &&
              AT(ColumnParts, cols) == 32 && AT(ColumnParts, chunk) == 36 &&
              AT(ColumnParts, vector) == 40 && AT(ColumnParts, drop) == 48 &&
              sizeof(ColumnParts) == 88, "layout");

struct ColumnSums {
    const float* parts;
    // Outputs, one per row of blocks, whose partial sums begin at column y·cols; null without one.
    float* outs[3];
    // Stride of the partial sums, in elements.
    uint64_t stride;
    uint32_t count;
    uint32_t cols;
    uint32_t add[3];
};
static_assert(AT(ColumnSums, parts) == 0 && AT(ColumnSums, outs) == 8 &&
              AT(ColumnSums, stride) == 32 && AT(ColumnSums, count) == 40 &&
              AT(ColumnSums, cols) == 44 && AT(ColumnSums, add) == 48 &&
              sizeof(ColumnSums) == 64, "layout");

struct Gelu {
    const void* x;
    void* y;
    uint64_t numel;
    uint32_t add;
    uint32_t vector;
};
static_assert(AT(Gelu, x) == 0 && AT(Gelu, y) == 8 && AT(Gelu, numel) == 16 &&
              AT(Gelu, add) == 24 && AT(Gelu, vector) == 28 &&
              sizeof(Gelu) == 32, "layout");

struct Swiglu {
    // [rows, 2·cols]: gate and value of each column of y
    const void* x;
    // y, or in backward dy, which is only read; of numel elements
    void* y;
    // backward: like x
    void* dx;
    uint64_t numel;
    uint32_t vector;
};
static_assert(AT(Swiglu, x) == 0 && AT(Swiglu, y) == 8 && AT(Swiglu, dx) == 16 &&
              AT(Swiglu, numel) == 24 && AT(Swiglu, vector) == 32 &&
              sizeof(Swiglu) == 40, "layout");

struct QueryKey {
    // [rows, qkv], and backward dy like it
    const void* qkv;
    const void* dy;
    // y, or dx
    void* to;
    // [d], or null: no norm
    const void* query_scale;
    const void* key_scale;
    // [rows], or null: no rotation
    const int32_t* positions;
    // [positions, d]: cosines, then sines
    const float* table;
    // backward: [blocks, 2, d], partial sums of the gradients of the scales
    float* parts;
    uint64_t rows;
    // Number of query heads, and of key/value heads.
    uint32_t heads;
    uint32_t kv;
    uint32_t d;
    // Heads per block, counted over all rows.
    uint32_t chunk;
    float eps;
    // Whether values are copied.
    uint32_t copy;
};
static_assert(AT(QueryKey, qkv) == 0 && AT(QueryKey, dy) == 8 && AT(QueryKey, to) == 16 &&
              AT(QueryKey, query_scale) == 24 && AT(QueryKey, key_scale) == 32 &&
              AT(QueryKey, positions) == 40 && AT(QueryKey, table) == 48 &&
              AT(QueryKey, parts) == 56 && AT(QueryKey, rows) == 64 && AT(QueryKey, heads) == 72 &&
              AT(QueryKey, kv) == 76 && AT(QueryKey, d) == 80 && AT(QueryKey, chunk) == 84 &&
              AT(QueryKey, eps) == 88 && AT(QueryKey, copy) == 92 &&
              sizeof(QueryKey) == 96, "layout");

struct BiasRows {
    const void* bias;
    void* x;
    uint64_t rows;
    uint32_t cols;
    uint32_t vector;
};
static_assert(AT(BiasRows, bias) == 0 && AT(BiasRows, x) == 8 && AT(BiasRows, rows) == 16 &&
              AT(BiasRows, cols) == 24 && AT(BiasRows, vector) == 28 &&
              sizeof(BiasRows) == 32, "layout");

struct LayerNorm {
    const void* x;
    const void* scale;
    // null: an RMS norm
    const void* shift;
    void* y;
    // [rows, 2]
    float* stats;
    uint64_t rows;
    uint32_t cols;
    float eps;
    uint32_t add;
    uint32_t vector;
};
static_assert(AT(LayerNorm, x) == 0 && AT(LayerNorm, scale) == 8 && AT(LayerNorm, shift) == 16 &&
              AT(LayerNorm, y) == 24 && AT(LayerNorm, stats) == 32 && AT(LayerNorm, rows) == 40 &&
              AT(LayerNorm, cols) == 48 && AT(LayerNorm, eps) == 52 && AT(LayerNorm, add) == 56 &&
              AT(LayerNorm, vector) == 60 &&
              sizeof(LayerNorm) == 64, "layout");

struct ResidualNorm {
    const void* x;
    const void* branch;
    // null: no bias
    const void* bias;
    void* y;
    const void* scale;
    // null: an RMS norm
    const void* shift;
    void* h;
    // [rows, 2]
    float* stats;
    uint64_t rows;
    uint32_t cols;
    float eps;
    uint32_t vector;
    DropoutMask drop;
};
static_assert(AT(ResidualNorm, x) == 0 && AT(ResidualNorm, branch) == 8 &&
              AT(ResidualNorm, bias) == 16 && AT(ResidualNorm, y) == 24 &&
              AT(ResidualNorm, scale) == 32 && AT(ResidualNorm, shift) == 40 &&
              AT(ResidualNorm, h) == 48 && AT(ResidualNorm, stats) == 56 &&
              AT(ResidualNorm, rows) == 64 && AT(ResidualNorm, cols) == 72 &&
              AT(ResidualNorm, eps) == 76 && AT(ResidualNorm, vector) == 80 &&
              AT(ResidualNorm, drop) == 88 &&
              sizeof(ResidualNorm) == 128, "layout");

struct LayerNormBackward {
    const void* dy;
    const void* x;
    const float* stats;
    const void* scale;
    void* dx;
    // [blocks, 2 or 3, cols]: parts of dscale, dshift and, with a residual, dbias
    float* parts;
    uint64_t rows;
    uint32_t cols;
    // Rows per block.
    uint32_t chunk;
    uint32_t add;
    // Whether the norm has no mean and no shift.
    uint32_t rms;
};
static_assert(AT(LayerNormBackward, dy) == 0 && AT(LayerNormBackward, x) == 8 &&
              AT(LayerNormBackward, stats) == 16 && AT(LayerNormBackward, scale) == 24 &&
              AT(LayerNormBackward, dx) == 32 && AT(LayerNormBackward, parts) == 40 &&
              AT(LayerNormBackward, rows) == 48 && AT(LayerNormBackward, cols) == 56 &&
              AT(LayerNormBackward, chunk) == 60 && AT(LayerNormBackward, add) == 64 &&
              AT(LayerNormBackward, rms) == 68 &&
              sizeof(LayerNormBackward) == 72, "layout");

struct NormResidualBackward {
    LayerNormBackward norm;
    // Null if it is dx and nothing is dropped.
    void* dbranch;
    DropoutMask drop;
};
static_assert(AT(NormResidualBackward, norm) == 0 && AT(NormResidualBackward, dbranch) == 72 &&
              AT(NormResidualBackward, drop) == 80 &&
              sizeof(NormResidualBackward) == 120, "layout");

struct Embed {
    const int32_t* ids;
    const void* table;
    void* y;
    uint64_t count;
    // First vocabulary entry of the table.
    int64_t first;
    int64_t table_rows;
    uint32_t cols;
    uint32_t add;
    uint32_t vector;
};
static_assert(AT(Embed, ids) == 0 && AT(Embed, table) == 8 && AT(Embed, y) == 16 &&
              AT(Embed, count) == 24 && AT(Embed, first) == 32 && AT(Embed, table_rows) == 40 &&
              AT(Embed, cols) == 48 && AT(Embed, add) == 52 && AT(Embed, vector) == 56 &&
              sizeof(Embed) == 64, "layout");

// Stable sort of the positions of ids, and of their table rows, by one 8-bit digit of the row.
struct EmbedSort {
    // Input of the first digit; the next two are then null.
    const int32_t* ids;
    const int32_t* from_order;
    const int32_t* from_rows;
    int32_t* order;
    int32_t* rows;
    // [256, tiles]: count of each digit in each tile of 256 positions, then its first index
    uint32_t* starts;
    // First vocabulary entry of the table.
    int64_t first;
    int64_t table_rows;
    uint32_t count;
    uint32_t shift;
};
static_assert(AT(EmbedSort, ids) == 0 && AT(EmbedSort, from_order) == 8 &&
              AT(EmbedSort, from_rows) == 16 && AT(EmbedSort, order) == 24 &&
              AT(EmbedSort, rows) == 32 && AT(EmbedSort, starts) == 40 &&
              AT(EmbedSort, first) == 48 && AT(EmbedSort, table_rows) == 56 &&
              AT(EmbedSort, count) == 64 && AT(EmbedSort, shift) == 68 &&
              sizeof(EmbedSort) == 72, "layout");

struct EmbedBackward {
    const void* dy;
    // Sorted by `EmbedSort`.
    const int32_t* order;
    const int32_t* rows;
    float* dtable;
    uint64_t count;
    int64_t table_rows;
    uint32_t cols;
    uint32_t vector;
};
static_assert(AT(EmbedBackward, dy) == 0 && AT(EmbedBackward, order) == 8 &&
              AT(EmbedBackward, rows) == 16 && AT(EmbedBackward, dtable) == 24 &&
              AT(EmbedBackward, count) == 32 && AT(EmbedBackward, table_rows) == 40 &&
              AT(EmbedBackward, cols) == 48 && AT(EmbedBackward, vector) == 52 &&
              sizeof(EmbedBackward) == 56, "layout");

struct CrossEntropy {
    void* logits;
    const int32_t* targets;
    // Unused for the stats.
    const float* weights;
    // [shares·rows, 3]
    float* stats;
    // Null for the stats.
    float* losses;
    // Null without the second loss.
    float* z_losses;
    // Factor of the gradient; null if the logits are not overwritten by their gradient.
    const float* scale;
    // First vocabulary entry of the columns.
    int64_t first;
    uint64_t rows;
    uint32_t cols;
    // Number of columns that are entries of the vocabulary.
    uint32_t own;
    // Unused for the stats.
    uint32_t shares;
    uint32_t vector;
    // Softcap of the logits; 0: none.
    float cap;
    // Coefficient of the second loss.
    float z;
};
static_assert(AT(CrossEntropy, logits) == 0 && AT(CrossEntropy, targets) == 8 &&
              AT(CrossEntropy, weights) == 16 && AT(CrossEntropy, stats) == 24 &&
              AT(CrossEntropy, losses) == 32 && AT(CrossEntropy, z_losses) == 40 &&
              AT(CrossEntropy, scale) == 48 && AT(CrossEntropy, first) == 56 &&
              AT(CrossEntropy, rows) == 64 && AT(CrossEntropy, cols) == 72 &&
              AT(CrossEntropy, own) == 76 && AT(CrossEntropy, shares) == 80 &&
              AT(CrossEntropy, vector) == 84 && AT(CrossEntropy, cap) == 88 &&
              AT(CrossEntropy, z) == 92 &&
              sizeof(CrossEntropy) == 96, "layout");

// Sums of `count` tensors.
struct SumParts {
    const void* x[64];
    uint64_t numel[64];
    // First block of each tensor, and the number of blocks.
    uint32_t first[65];
    // Index of each tensor in `parts`.
    uint32_t slot[64];
    // [tensors, 1 + SUM_PARTS]: number of partial sums, then these
    double* parts;
    uint32_t count;
    // 0 sums the values, 1 their squares, 2 counts the zeros.
    uint32_t term;
    uint32_t vector;
};
static_assert(AT(SumParts, x) == 0 && AT(SumParts, numel) == 512 && AT(SumParts, first) == 1024 &&
              AT(SumParts, slot) == 1284 && AT(SumParts, parts) == 1544 &&
              AT(SumParts, count) == 1552 && AT(SumParts, term) == 1556 &&
              AT(SumParts, vector) == 1560 &&
              sizeof(SumParts) == 1568, "layout");

struct SumFinish {
    // [tensors, 1 + SUM_PARTS]
    const double* parts;
    float* out;
    uint32_t add;
};
static_assert(AT(SumFinish, parts) == 0 && AT(SumFinish, out) == 8 && AT(SumFinish, add) == 16 &&
              sizeof(SumFinish) == 24, "layout");

struct CountFinish {
    // [tensors, 1 + SUM_PARTS]
    const double* parts;
    float* lows;
    float* highs;
    double high;
};
static_assert(AT(CountFinish, parts) == 0 && AT(CountFinish, lows) == 8 &&
              AT(CountFinish, highs) == 16 && AT(CountFinish, high) == 24 &&
              sizeof(CountFinish) == 32, "layout");

struct DigestParts {
    const void* x;
    uint64_t* parts;
    uint64_t numel;
    uint32_t vector;
};
static_assert(AT(DigestParts, x) == 0 && AT(DigestParts, parts) == 8 &&
              AT(DigestParts, numel) == 16 && AT(DigestParts, vector) == 24 &&
              sizeof(DigestParts) == 32, "layout");

struct DigestFinish {
    const uint64_t* parts;
    uint64_t* out;
    uint64_t count;
};
static_assert(AT(DigestFinish, parts) == 0 && AT(DigestFinish, out) == 8 &&
              AT(DigestFinish, count) == 16 &&
              sizeof(DigestFinish) == 24, "layout");

struct Clip {
    const float* sums;
    // Loss scale of the gradients that were squared.
    const float* scale;
    // [2]: norm, factor
    float* out;
    uint32_t count;
    float max_norm;
};
static_assert(AT(Clip, sums) == 0 && AT(Clip, scale) == 8 && AT(Clip, out) == 16 &&
              AT(Clip, count) == 24 && AT(Clip, max_norm) == 28 &&
              sizeof(Clip) == 32, "layout");

struct LossScaleStep {
    // NaN after an overflow; set to NaN if the scale is stuck.
    float* factor;
    // 0 updated, 1 skipped, 2 stuck
    float* status;
    float* scale;
    // [5]: updates in a row, overflows left, updates, skipped, stuck
    int64_t* counts;
    int64_t window;
    int64_t hysteresis;
    float growth;
    float min;
};
static_assert(AT(LossScaleStep, factor) == 0 && AT(LossScaleStep, status) == 8 &&
              AT(LossScaleStep, scale) == 16 && AT(LossScaleStep, counts) == 24 &&
              AT(LossScaleStep, window) == 32 && AT(LossScaleStep, hysteresis) == 40 &&
              AT(LossScaleStep, growth) == 48 && AT(LossScaleStep, min) == 52 &&
              sizeof(LossScaleStep) == 56, "layout");

struct SkipAbove {
    const float* loss;
    const float* norm;
    // Set to NaN if the loss or the norm is above its limit.
    float* factor;
    // Status of `LossScaleStep`; 3 if this op skips the step.
    float* status;
    // Counts of `LossScaleStep`.
    int64_t* counts;
    float max_loss;
    float max_norm;
};
static_assert(AT(SkipAbove, loss) == 0 && AT(SkipAbove, norm) == 8 &&
              AT(SkipAbove, factor) == 16 && AT(SkipAbove, status) == 24 &&
              AT(SkipAbove, counts) == 32 && AT(SkipAbove, max_loss) == 40 &&
              AT(SkipAbove, max_norm) == 44 &&
              sizeof(SkipAbove) == 48, "layout");

struct AdamScalars {
    const int64_t* updates;
    // [2]: lr / (1 − β₁ᵗ), 1 / √(1 − β₂ᵗ)
    float* out;
    float lr;
    float beta1;
    float beta2;
};
static_assert(AT(AdamScalars, updates) == 0 && AT(AdamScalars, out) == 8 &&
              AT(AdamScalars, lr) == 16 && AT(AdamScalars, beta1) == 20 &&
              AT(AdamScalars, beta2) == 24 &&
              sizeof(AdamScalars) == 32, "layout");

// AdamW of `count` tensors.
struct AdamW {
    const void* grad[64];
    float* master[64];
    float* m[64];
    float* v[64];
    // Null if it is the master.
    void* weight[64];
    uint64_t numel[64];
    // 1 − lr·weight_decay; and a factor of the step
    float keep[64];
    float lr_scale[64];
    // First piece of `ADAMW_PIECE` elements of each tensor, and the number of pieces.
    uint32_t first[65];
    // [3]: factor, then the two of `AdamScalars`
    const float* scalars;
    float beta1;
    float beta2;
    float eps;
    uint32_t count;
    uint32_t vector;
};
static_assert(AT(AdamW, grad) == 0 && AT(AdamW, master) == 512 && AT(AdamW, m) == 1024 &&
              AT(AdamW, v) == 1536 && AT(AdamW, weight) == 2048 && AT(AdamW, numel) == 2560 &&
              AT(AdamW, keep) == 3072 && AT(AdamW, lr_scale) == 3328 && AT(AdamW, first) == 3584 &&
              AT(AdamW, scalars) == 3848 && AT(AdamW, beta1) == 3856 && AT(AdamW, beta2) == 3860 &&
              AT(AdamW, eps) == 3864 && AT(AdamW, count) == 3868 && AT(AdamW, vector) == 3872 &&
              sizeof(AdamW) == 3880, "layout");

struct Adam8bit {
    const void* grad;
    float* master;
    // [numel], [numel / block]
    uint8_t* m_codes;
    float* m_scales;
    // The same for the square root of v.
    uint8_t* v_codes;
    float* v_scales;
    // Null if it is the master.
    void* weight;
    // [3]: factor, then the two of `AdamScalars`
    const float* scalars;
    uint64_t numel;
    // 1 − lr·weight_decay; and a factor of the step
    float keep;
    float lr_scale;
    float beta1;
    float beta2;
    float eps;
    // Elements per scale: 16, 32 or 64.
    uint32_t block;
};
static_assert(AT(Adam8bit, grad) == 0 && AT(Adam8bit, master) == 8 &&
              AT(Adam8bit, m_codes) == 16 && AT(Adam8bit, m_scales) == 24 &&
              AT(Adam8bit, v_codes) == 32 && AT(Adam8bit, v_scales) == 40 &&
              AT(Adam8bit, weight) == 48 && AT(Adam8bit, scalars) == 56 &&
              AT(Adam8bit, numel) == 64 && AT(Adam8bit, keep) == 72 &&
              AT(Adam8bit, lr_scale) == 76 && AT(Adam8bit, beta1) == 80 &&
              AT(Adam8bit, beta2) == 84 && AT(Adam8bit, eps) == 88 && AT(Adam8bit, block) == 92 &&
              sizeof(Adam8bit) == 96, "layout");

// Rank's part of a matrix, as `MatrixPart` of device/adafactor.rs defines it.
struct MatrixPart {
    uint64_t first;
    uint64_t len;
    // Rows of the share; 1 for a vector.
    uint64_t rows;
    uint32_t cols;
    // Rows of each fused matrix in turn; for a vector: columns.
    uint32_t width0;
    uint32_t width1;
    uint32_t width2;
    // Rows of the whole matrix; 1 for a vector.
    uint64_t whole_rows;
    uint32_t whole_cols;
    uint32_t vector;
};
static_assert(AT(MatrixPart, first) == 0 && AT(MatrixPart, len) == 8 &&
              AT(MatrixPart, rows) == 16 && AT(MatrixPart, cols) == 24 &&
              AT(MatrixPart, width0) == 28 && AT(MatrixPart, width1) == 32 &&
              AT(MatrixPart, width2) == 36 && AT(MatrixPart, whole_rows) == 40 &&
              AT(MatrixPart, whole_cols) == 48 && AT(MatrixPart, vector) == 52 &&
              sizeof(MatrixPart) == 56, "layout");

struct FactorRows {
    const float* x;
    const float* factor;
    // [rows]
    float* rows;
    MatrixPart part;
};
static_assert(AT(FactorRows, x) == 0 && AT(FactorRows, factor) == 8 &&
              AT(FactorRows, rows) == 16 && AT(FactorRows, part) == 24 &&
              sizeof(FactorRows) == 80, "layout");

struct FactorCols {
    const float* x;
    const float* factor;
    // [chunks, fused, cols]
    float* parts;
    // Rows per block.
    uint64_t chunk;
    // Rows of the sums: fused matrices, or 1.
    uint32_t count;
    MatrixPart part;
};
static_assert(AT(FactorCols, x) == 0 && AT(FactorCols, factor) == 8 &&
              AT(FactorCols, parts) == 16 && AT(FactorCols, chunk) == 24 &&
              AT(FactorCols, count) == 32 && AT(FactorCols, part) == 40 &&
              sizeof(FactorCols) == 96, "layout");

struct FusedSums {
    const float* x;
    // [blocks, 3]
    double* parts;
    // Factor of the gradient, to sum U²; null: x² is summed.
    const float* factor;
    // Means by row; null for a vector.
    const float* row;
    const float* col;
    const float* mean;
    float eps;
    MatrixPart part;
};
static_assert(AT(FusedSums, x) == 0 && AT(FusedSums, parts) == 8 && AT(FusedSums, factor) == 16 &&
              AT(FusedSums, row) == 24 && AT(FusedSums, col) == 32 && AT(FusedSums, mean) == 40 &&
              AT(FusedSums, eps) == 48 && AT(FusedSums, part) == 56 &&
              sizeof(FusedSums) == 112, "layout");

struct FusedFinish {
    // [blocks, 3]
    const double* parts;
    // [fused]: accumulates
    float* out;
    uint32_t blocks;
    uint32_t count;
};
static_assert(AT(FusedFinish, parts) == 0 && AT(FusedFinish, out) == 8 &&
              AT(FusedFinish, blocks) == 16 && AT(FusedFinish, count) == 20 &&
              sizeof(FusedFinish) == 24, "layout");

struct AdafactorScalars {
    const int64_t* updates;
    // [2]: 1 − β̂, ρ
    float* out;
    float lr;
    float beta2_decay;
    uint32_t relative_step;
};
static_assert(AT(AdafactorScalars, updates) == 0 && AT(AdafactorScalars, out) == 8 &&
              AT(AdafactorScalars, lr) == 16 && AT(AdafactorScalars, beta2_decay) == 20 &&
              AT(AdafactorScalars, relative_step) == 24 &&
              sizeof(AdafactorScalars) == 32, "layout");

struct SecondMoment {
    // [2]: factor, 1 − β̂
    const float* scalars;
    // Null for a vector.
    const float* row_sums;
    const float* col_sums;
    // Null for a vector.
    float* row;
    float* col;
    // Null for a vector.
    float* mean;
    MatrixPart part;
};
static_assert(AT(SecondMoment, scalars) == 0 && AT(SecondMoment, row_sums) == 8 &&
              AT(SecondMoment, col_sums) == 16 && AT(SecondMoment, row) == 24 &&
              AT(SecondMoment, col) == 32 && AT(SecondMoment, mean) == 40 &&
              AT(SecondMoment, part) == 48 &&
              sizeof(SecondMoment) == 104, "layout");

struct Adafactor {
    const float* grad;
    float* master;
    // Null if it is the master.
    void* weight;
    // [3]: factor, 1 − β̂, ρ
    const float* scalars;
    // Null for a vector.
    const float* row;
    const float* col;
    const float* mean;
    // [fused]: Σ U²
    const float* update_squares;
    // [fused]: Σ θ², or null: steps are not scaled by it
    const float* weight_squares;
    // 1 − lr·weight_decay; and a factor of the step
    float keep;
    float lr_scale;
    float eps;
    float scale_eps;
    float clip_threshold;
    MatrixPart part;
};
static_assert(AT(Adafactor, grad) == 0 && AT(Adafactor, master) == 8 &&
              AT(Adafactor, weight) == 16 && AT(Adafactor, scalars) == 24 &&
              AT(Adafactor, row) == 32 && AT(Adafactor, col) == 40 && AT(Adafactor, mean) == 48 &&
              AT(Adafactor, update_squares) == 56 && AT(Adafactor, weight_squares) == 64 &&
              AT(Adafactor, keep) == 72 && AT(Adafactor, lr_scale) == 76 &&
              AT(Adafactor, eps) == 80 && AT(Adafactor, scale_eps) == 84 &&
              AT(Adafactor, clip_threshold) == 88 && AT(Adafactor, part) == 96 &&
              sizeof(Adafactor) == 152, "layout");

struct Momentum {
    const float* grad;
    float* m;
    void* out;
    const float* factor;
    uint64_t numel;
    float momentum;
    uint32_t nesterov;
    uint32_t vector;
};
static_assert(AT(Momentum, grad) == 0 && AT(Momentum, m) == 8 && AT(Momentum, out) == 16 &&
              AT(Momentum, factor) == 24 && AT(Momentum, numel) == 32 &&
              AT(Momentum, momentum) == 40 && AT(Momentum, nesterov) == 44 &&
              AT(Momentum, vector) == 48 &&
              sizeof(Momentum) == 56, "layout");

// Matrix of several that are fused by rows, as `FusedMatrix` of device/muon.rs defines it.
struct FusedRows {
    // [cols / share, all_rows, share] and [rows, cols]; `back`: copies `one` into `all`
    void* all;
    void* one;
    uint64_t all_rows;
    uint64_t rows;
    uint32_t cols;
    uint32_t share;
    // First row of the matrix; its rows are in groups of `width`, `period` rows apart.
    uint32_t first;
    uint32_t width;
    uint32_t period;
    uint32_t back;
    uint32_t vector;
};
static_assert(AT(FusedRows, all) == 0 && AT(FusedRows, one) == 8 &&
              AT(FusedRows, all_rows) == 16 && AT(FusedRows, rows) == 24 &&
              AT(FusedRows, cols) == 32 && AT(FusedRows, share) == 36 &&
              AT(FusedRows, first) == 40 && AT(FusedRows, width) == 44 &&
              AT(FusedRows, period) == 48 && AT(FusedRows, back) == 52 &&
              AT(FusedRows, vector) == 56 &&
              sizeof(FusedRows) == 64, "layout");

struct ScaleToNorm {
    void* x;
    const float* sum;
    uint64_t numel;
    float eps;
    uint32_t vector;
};
static_assert(AT(ScaleToNorm, x) == 0 && AT(ScaleToNorm, sum) == 8 &&
              AT(ScaleToNorm, numel) == 16 && AT(ScaleToNorm, eps) == 24 &&
              AT(ScaleToNorm, vector) == 28 &&
              sizeof(ScaleToNorm) == 32, "layout");

struct Blend {
    const void* x;
    void* y;
    uint64_t numel;
    float a;
    float b;
    uint32_t vector;
};
static_assert(AT(Blend, x) == 0 && AT(Blend, y) == 8 && AT(Blend, numel) == 16 &&
              AT(Blend, a) == 24 && AT(Blend, b) == 28 && AT(Blend, vector) == 32 &&
              sizeof(Blend) == 40, "layout");

struct MuonUpdate {
    // `weight` is null if it is the master.
    const void* direction;
    float* master;
    void* weight;
    const float* factor;
    uint64_t numel;
    float keep;
    float step;
    uint32_t vector;
};
static_assert(AT(MuonUpdate, direction) == 0 && AT(MuonUpdate, master) == 8 &&
              AT(MuonUpdate, weight) == 16 && AT(MuonUpdate, factor) == 24 &&
              AT(MuonUpdate, numel) == 32 && AT(MuonUpdate, keep) == 40 &&
              AT(MuonUpdate, step) == 44 && AT(MuonUpdate, vector) == 48 &&
              sizeof(MuonUpdate) == 56, "layout");

// Maxima of the magnitudes of x [rows, cols] by row and by column, for 8-bit floats.
struct LineMaxima {
    const void* x;
    // [rows] and [cols], initially 0, or null: not requested
    float* of_rows;
    float* of_columns;
    uint64_t rows;
    uint32_t cols;
    uint32_t vector;
};
static_assert(AT(LineMaxima, x) == 0 && AT(LineMaxima, of_rows) == 8 &&
              AT(LineMaxima, of_columns) == 16 && AT(LineMaxima, rows) == 24 &&
              AT(LineMaxima, cols) == 32 && AT(LineMaxima, vector) == 36 &&
              sizeof(LineMaxima) == 40, "layout");

struct Fp8Scales {
    const float* maxima;
    float* scales;
    uint32_t lines;
    uint32_t shares;
    float largest;
    uint32_t whole;
};
static_assert(AT(Fp8Scales, maxima) == 0 && AT(Fp8Scales, scales) == 8 &&
              AT(Fp8Scales, lines) == 16 && AT(Fp8Scales, shares) == 20 &&
              AT(Fp8Scales, largest) == 24 && AT(Fp8Scales, whole) == 28 &&
              sizeof(Fp8Scales) == 32, "layout");

struct Fp8Codes {
    const void* x;
    // [rows], u8 [rows, cols]; in `fp8_columns_*` null: no codes of rows
    const float* row_scales;
    void* row_codes;
    // [cols], u8 [cols, rows]
    const float* column_scales;
    void* column_codes;
    uint64_t rows;
    uint32_t cols;
    uint32_t vector;
    // Whether lines of columns may be written 16 bytes at a time.
    uint32_t wide;
};
static_assert(AT(Fp8Codes, x) == 0 && AT(Fp8Codes, row_scales) == 8 &&
              AT(Fp8Codes, row_codes) == 16 && AT(Fp8Codes, column_scales) == 24 &&
              AT(Fp8Codes, column_codes) == 32 && AT(Fp8Codes, rows) == 40 &&
              AT(Fp8Codes, cols) == 48 && AT(Fp8Codes, vector) == 52 && AT(Fp8Codes, wide) == 56 &&
              sizeof(Fp8Codes) == 64, "layout");

// Rows scaled by their own maxima.
struct Fp8OwnRows {
    const void* x;
    float* scales;
    void* codes;
    // Maxima of columns [cols], initially 0, or null: not requested
    float* of_columns;
    uint64_t rows;
    uint32_t cols;
    float largest;
    uint32_t vector;
};
static_assert(AT(Fp8OwnRows, x) == 0 && AT(Fp8OwnRows, scales) == 8 &&
              AT(Fp8OwnRows, codes) == 16 && AT(Fp8OwnRows, of_columns) == 24 &&
              AT(Fp8OwnRows, rows) == 32 && AT(Fp8OwnRows, cols) == 40 &&
              AT(Fp8OwnRows, largest) == 44 && AT(Fp8OwnRows, vector) == 48 &&
              sizeof(Fp8OwnRows) == 56, "layout");

struct Axpy {
    const float* x;
    float* y;
    const float* factor;
    uint64_t numel;
    float a;
    uint32_t add;
    uint32_t vector;
};
static_assert(AT(Axpy, x) == 0 && AT(Axpy, y) == 8 && AT(Axpy, factor) == 16 &&
              AT(Axpy, numel) == 24 && AT(Axpy, a) == 32 && AT(Axpy, add) == 36 &&
              AT(Axpy, vector) == 40 &&
              sizeof(Axpy) == 48, "layout");

struct Orthogonalize {
    // [rows, cols] each
    float* x[8];
    uint32_t rows[8];
    uint32_t cols;
};
static_assert(AT(Orthogonalize, x) == 0 && AT(Orthogonalize, rows) == 64 &&
              AT(Orthogonalize, cols) == 96 &&
              sizeof(Orthogonalize) == 104, "layout");

struct Attention {
    // [N, kv, heads / kv + 2, d]: queries, their key, their value
    const void* qkv;
    // [N, heads, d]
    void* y;
    // [N, heads]
    float* lse;
    // [N, heads, d]
    const void* dy;
    // [N, heads]: Σ dy·y
    float* delta;
    // Like qkv
    void* dqkv;
    // [N, 2], or null: causal
    const int32_t* ranges;
    // [heads], or null
    const float* slopes;
    // N
    uint64_t rows;
    uint32_t seq;
    uint32_t heads;
    // Number of key/value heads, and query heads per key/value head.
    uint32_t kv;
    uint32_t serves;
    // 2^32 / serves, rounded up, or 0 if serves is 1; __umulhi(head, inverse) is head / serves
    uint32_t inverse;
    uint32_t first_head;
    uint32_t d;
    // Maximum number of keys that a query sees, including its own; seq without a window
    uint32_t window;
    // Factor of the scores, usually 1/√d
    float scale;
    DropoutMask drop;
};
static_assert(AT(Attention, qkv) == 0 && AT(Attention, y) == 8 && AT(Attention, lse) == 16 &&
              AT(Attention, dy) == 24 && AT(Attention, delta) == 32 && AT(Attention, dqkv) == 40 &&
              AT(Attention, ranges) == 48 && AT(Attention, slopes) == 56 &&
              AT(Attention, rows) == 64 && AT(Attention, seq) == 72 &&
              AT(Attention, heads) == 76 && AT(Attention, kv) == 80 &&
              AT(Attention, serves) == 84 && AT(Attention, inverse) == 88 &&
              AT(Attention, first_head) == 92 && AT(Attention, d) == 96 &&
              AT(Attention, window) == 100 && AT(Attention, scale) == 104 &&
              AT(Attention, drop) == 112 &&
              sizeof(Attention) == 152, "layout");

struct AttentionHopper {
    // [d, 3·heads, seq, samples] and [d, heads, seq, samples], in boxes of 64 positions
    TensorMap qkv;
    TensorMap dy;
    Attention attention;
    // Whether forward's warpgroups issue their products in alternation.
    uint32_t ping_pong;
};
static_assert(AT(AttentionHopper, qkv) == 0 && AT(AttentionHopper, dy) == 128 &&
              AT(AttentionHopper, attention) == 256 && AT(AttentionHopper, ping_pong) == 408 &&
              sizeof(AttentionHopper) == 448, "layout");
