// Rows of a table by their number.
//
// Bytes moved for each element of size s: forward 2s (3s to add); backward s, and 8 for each element
// of a row of the table that some id names. Ids are sorted first, which reads each id once for each
// block of 256 ids: from the cache.
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

// Sorts places by their ids: each counts the places that come before it. Most tiles of ids are whole
// before or whole behind a block's own.
__device__ void sort_ids(const EmbedSort& a) {
    __shared__ int tile[256];
    int count = a.count, block = blockIdx.x * 256, i = block + threadIdx.x;
    int own = i < count ? a.ids[i] : 0, before = 0;
    for (int start = 0; start < count; start += 256) {
        int at = start + threadIdx.x;
        __syncthreads();
        tile[threadIdx.x] = at < count ? a.ids[at] : 0x7fffffff;
        __syncthreads();
        if (start < block) {
#pragma unroll 8
            for (int j = 0; j < 256; j++) before += tile[j] <= own;
        } else {
#pragma unroll 8
            for (int j = 0; j < 256; j++)
                before += tile[j] < own || (tile[j] == own && start + j < i);
        }
    }
    if (i < count) {
        a.order[before] = i;
        a.sorted[before] = own;
    }
}
KERNEL(embed_sort, sort_ids, EmbedSort, 256)

// Rows of dy that are on their way at once: a token that is every twentieth is not one chain of waits.
constexpr int AT_ONCE = 8;

// The first of each id in the sorted order adds them all: dtable[id] += dy[i], in the order of i.
template <class T, int V> __device__ void embed_backward_by(const EmbedBackward& a) {
    each_piece<V>(a.count, a.cols, [&](uint64_t p, uint32_t col) {
        int id = a.sorted[p];
        int64_t row = id - a.first;
        if (row < 0 || row >= a.table_rows || (p > 0 && a.sorted[p - 1] == id)) return;
        float sum[V];
        load(a.dtable + row * a.cols + col, sum);
        for (bool more = true; more; p += AT_ONCE) {
            T dy[AT_ONCE][V] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                more = p + k < a.count && a.sorted[p + k] == id;
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
        store(a.dtable + row * a.cols + col, sum);
    });
}

template <class T> __device__ void embed_backward(const EmbedBackward& a) {
    if (a.vector) embed_backward_by<T, WIDE<T>>(a);
    else embed_backward_by<T, 1>(a);
}
KERNELS(embed_backward, embed_backward<T>, EmbedBackward, 256)
