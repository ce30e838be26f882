// Embedding: rows of a table by their id.
//
// Bytes moved for each element of size s: forward 2s (3s to add); backward s, and 8 for each element of
// a table row that occurs among the ids. The ids are sorted first: 24 bytes and 512 comparisons per id
// for each 8-bit digit of the last row's number.
#include "common.cuh"

template <class T, int V> __device__ void embed_by(const Embed& a) {
    each_piece<V>(a.count, a.cols, [&](uint64_t i, uint32_t col) {
        int64_t row = a.ids[i] - a.first;
        float x[V] = {};
        if (row >= 0 && row < a.table_rows) load(static_cast<const T*>(a.table) + row * a.cols + col, x);
        put(static_cast<T*>(a.y) + i * a.cols + col, x, a.add);
    });
}

template <class T> __device__ void embed(const Embed& a) {
    if (a.vector) embed_by<T, WIDE<T>>(a);
    else embed_by<T, 1>(a);
}
KERNELS(embed, embed<T>, Embed, 256)

// Stable radix sort of positions by the table rows of their ids, from the lowest digit: three kernels
// per digit. A block has one tile of positions, one per thread; ids outside the table sort behind its
// last row.
constexpr int SORTED = 256;

__device__ __forceinline__ int row_of(const EmbedSort& a, uint32_t at) {
    if (a.from_rows) return a.from_rows[at];
    int64_t row = a.ids[at] - a.first;
    return (int)(row >= 0 && row < a.table_rows ? row : a.table_rows);
}

// Digits of a block's tile; behind the last position 256, which is not a digit.
__device__ __forceinline__ int tile_of(const EmbedSort& a, int (&digits)[SORTED]) {
    uint32_t at = blockIdx.x * SORTED + threadIdx.x;
    int digit = at < a.count ? row_of(a, at) >> a.shift & 255 : 256;
    digits[threadIdx.x] = digit;
    __syncthreads();
    return digit;
}

// starts[digit, tile] = number of positions of this digit in this tile; one thread per digit.
__device__ void count_digits(const EmbedSort& a) {
    SHARED(int, digits, [SORTED]);
    tile_of(a, digits);
    uint32_t own = 0;
#pragma unroll 8
    for (int j = 0; j < SORTED; j++) own += digits[j] == (int)threadIdx.x;
    a.starts[threadIdx.x * gridDim.x + blockIdx.x] = own;
}
KERNEL(embed_count, count_digits, EmbedSort, SORTED)

// Exclusive prefix sum of starts, by one block whose threads have equally many entries each.
constexpr int STARTERS = 1024;
__device__ void start_digits(const EmbedSort& a) {
    SHARED(uint32_t, sums, [STARTERS]);
    uint32_t all = (a.count + SORTED - 1) / SORTED * SORTED, each = (all + STARTERS - 1) / STARTERS;
    uint32_t first = threadIdx.x * each, end = first + each < all ? first + each : all;
    uint32_t sum = 0, before = 0;
#pragma unroll 4
    for (uint32_t at = first; at < end; at++) sum += a.starts[at];
    sums[threadIdx.x] = sum;
    __syncthreads();
#pragma unroll 8
    for (int thread = 0; thread < (int)threadIdx.x; thread++) before += sums[thread];
    for (uint32_t at = first; at < end; at++) {
        uint32_t count = a.starts[at];
        a.starts[at] = before;
        before += count;
    }
}
KERNEL(embed_start, start_digits, EmbedSort, STARTERS)

// Stores each position behind the earlier ones of its tile that have its digit.
__device__ void place_digits(const EmbedSort& a) {
    SHARED(int, digits, [SORTED]);
    int digit = tile_of(a, digits);
    uint32_t at = blockIdx.x * SORTED + threadIdx.x, before = 0;
    if (at >= a.count) return;
    for (int j = 0; j < (int)threadIdx.x; j++) before += digits[j] == digit;
    uint32_t to = a.starts[digit * gridDim.x + blockIdx.x] + before;
    a.order[to] = a.from_rows ? a.from_order[at] : (int)at;
    a.rows[to] = row_of(a, at);
}
KERNEL(embed_place, place_digits, EmbedSort, SORTED)

// Loads of dy in flight at once, so that a frequent token (every twentieth) is not one chain of
// dependent loads.
constexpr int AT_ONCE = 8;

// dtable[row] += dy[i] in the order of i, by the first sorted position of each row.
template <class T, int V> __device__ void embed_backward_by(const EmbedBackward& a) {
    each_piece<V>(a.count, a.cols, [&](uint64_t p, uint32_t col) {
        int row = a.rows[p];
        if (row >= a.table_rows || (p > 0 && a.rows[p - 1] == row)) return;
        float sum[V], *to = a.dtable + (uint64_t)row * a.cols + col;
        load(to, sum);
        for (bool more = true; more; p += AT_ONCE) {
            T dy[AT_ONCE][V] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                more = p + k < a.count && a.rows[p + k] == row;
                if (!more) continue;
                const T* from = static_cast<const T*>(a.dy) + (uint64_t)a.order[p + k] * a.cols + col;
                if constexpr (V == 1) dy[k][0] = *from;
                else memcpy(dy[k], __builtin_assume_aligned(from, 16), 16);
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] += widen(dy[k][i]);
        }
        store(to, sum);
    });
}

template <class T> __device__ void embed_backward(const EmbedBackward& a) {
    if (a.vector) embed_backward_by<T, WIDE<T>>(a);
    else embed_backward_by<T, 1>(a);
}
KERNELS(embed_backward, embed_backward<T>, EmbedBackward, 256)
