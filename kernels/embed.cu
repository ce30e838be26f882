// Rows of a table by their number.
//
// Bytes moved for each element of size s: forward 2s (3s to add); backward s, and 8 for each element
// of a row of the table that some id names. Ids that are equal are chained in their order first,
// which reads each id once for each block of 256 ids: from the cache.
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

// next[i]: the next place with the same id, or -1. first[i]: whether none before has it.
__device__ void chain(const EmbedChain& a) {
    __shared__ int tile[256];
    int i = blockIdx.x * 256 + threadIdx.x, count = a.count;
    int own = i < count ? a.ids[i] : 0, next = -1;
    bool first = true;
    for (int start = 0; start < count; start += 256) {
        int at = start + threadIdx.x;
        __syncthreads();
        tile[threadIdx.x] = at < count ? a.ids[at] : 0;
        __syncthreads();
        int length = count - start < 256 ? count - start : 256;
        if (next >= 0 || (!first && start + 255 < i)) continue;
        for (int j = 0; j < length; j++) {
            if (tile[j] != own) continue;
            if (start + j < i) first = false;
            else if (start + j > i && next < 0) next = start + j;
        }
    }
    if (i < count) {
        a.next[i] = next;
        a.first[i] = first;
    }
}
KERNEL(embed_chain, chain, EmbedChain, 256)

// The first place of each id walks its chain: dtable[id] += dy[i], in the order of i.
template <class T, int V> __device__ void embed_backward_by(const EmbedBackward& a) {
    each_piece<V>(a.count, a.cols, [&](uint64_t i, uint32_t col) {
        int64_t row = a.ids[i] - a.first;
        if (!a.first_position[i] || row < 0 || row >= a.table_rows) return;
        float sum[V];
        load(a.dtable + row * a.cols + col, sum);
        for (int at = (int)i; at >= 0;) {
            int next = a.next[at];
            float dy[V];
            load(static_cast<const T*>(a.dy) + (uint64_t)at * a.cols + col, dy);
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] += dy[k];
            at = next;
        }
        store(a.dtable + row * a.cols + col, sum);
    });
}

template <class T> __device__ void embed_backward(const EmbedBackward& a) {
    if (a.vector) embed_backward_by<T, WIDE<T>>(a);
    else embed_backward_by<T, 1>(a);
}
KERNELS(embed_backward, embed_backward<T>, EmbedBackward, 256)
