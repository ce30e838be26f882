// Muon: momentum, splitting and joining of fused matrices, and the update.
//
// Bytes moved for each element, of an f32 gradient, a direction of size s and a rounded weight of size
// t: momentum 12 + s; rows of a fused matrix 2s; to norm 1 2s; blend 3s; the update 8 + s + t.
#include "common.cuh"

template <class T, int V> __device__ void momentum_by(const Momentum& a, float factor) {
    float grow = 1.0f - a.momentum;
    bool skipped = factor != factor; // NaN skips the update
    each<V>(a.numel, [&](uint64_t at) {
        float g[V], m[V];
        load(a.grad + at, g);
        load(a.m + at, m);
#pragma unroll
        for (int i = 0; i < V; i++) {
            // Rounds before the subtraction, as the host does: the compiler must not fuse them.
            g[i] = __fmul_rn(g[i], factor);
            m[i] = skipped ? m[i] : fmaf(g[i] - m[i], grow, m[i]);
            g[i] = skipped ? 0.0f : a.nesterov ? fmaf(m[i] - g[i], a.momentum, g[i]) : m[i];
        }
        store(a.m + at, m);
        store(static_cast<T*>(a.out) + at, g);
    });
}

template <class T> __device__ void momentum(const Momentum& a) {
    float factor = *a.factor;
    if (a.vector) momentum_by<T, WIDE<T>>(a, factor);
    else momentum_by<T, 1>(a, factor);
}
KERNELS(momentum, momentum<T>, Momentum, 256)

// A rank's share of columns is a multiple of V.
template <class T, int V> __device__ void fused_rows_by(const FusedRows& a) {
    each_piece<V>(a.rows, a.cols, [&](uint64_t row, uint32_t col) {
        uint64_t place = row / a.width * a.period + a.first + row % a.width;
        uint64_t there = (col / a.share * a.all_rows + place) * a.share + col % a.share;
        T* all = static_cast<T*>(a.all) + there;
        T* one = static_cast<T*>(a.one) + row * a.cols + col;
        float x[V];
        load(a.back ? one : all, x);
        store(a.back ? all : one, x);
    });
}

template <class T> __device__ void fused_rows(const FusedRows& a) {
    if (a.vector) fused_rows_by<T, WIDE<T>>(a);
    else fused_rows_by<T, 1>(a);
}
KERNELS(fused_rows, fused_rows<T>, FusedRows, 256)

template <class T, int V> __device__ void scale_to_norm_by(const ScaleToNorm& a) {
    float by = (float)(1.0 / fmax(sqrt((double)*a.sum), (double)a.eps));
    each<V>(a.numel, [&](uint64_t at) {
        float x[V];
        load(static_cast<T*>(a.x) + at, x);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] *= by;
        store(static_cast<T*>(a.x) + at, x);
    });
}

template <class T> __device__ void scale_to_norm(const ScaleToNorm& a) {
    if (a.vector) scale_to_norm_by<T, WIDE<T>>(a);
    else scale_to_norm_by<T, 1>(a);
}
KERNELS(scale_to_norm, scale_to_norm<T>, ScaleToNorm, 256)

template <class T, int V> __device__ void blend_by(const Blend& a) {
    each<V>(a.numel, [&](uint64_t at) {
        float x[V], y[V];
        load(static_cast<const T*>(a.x) + at, x);
        load(static_cast<T*>(a.y) + at, y);
#pragma unroll
        for (int i = 0; i < V; i++) y[i] = fmaf(a.a, x[i], a.b * y[i]);
        store(static_cast<T*>(a.y) + at, y);
    });
}

template <class T> __device__ void blend(const Blend& a) {
    if (a.vector) blend_by<T, WIDE<T>>(a);
    else blend_by<T, 1>(a);
}
KERNELS(blend, blend<T>, Blend, 256)

template <class D, class L, int V> __device__ void muon_update_by(const MuonUpdate& a) {
    each<V>(a.numel, [&](uint64_t at) {
        float u[V], w[V];
        load(static_cast<const D*>(a.direction) + at, u);
        load(a.master + at, w);
#pragma unroll
        for (int i = 0; i < V; i++) w[i] = fmaf(-a.step, u[i], w[i] * a.keep);
        store(a.master + at, w);
        if (a.weight) store(static_cast<L*>(a.weight) + at, w);
    });
}

template <class D, class L> __device__ void muon_update(const MuonUpdate& a) {
    float factor = *a.factor;
    if (factor != factor) return; // NaN skips the update
    if (a.vector) muon_update_by<D, L, 8>(a);
    else muon_update_by<D, L, 1>(a);
}
// A run uses f32 and one other dtype.
KERNELS(muon_update_f32, (muon_update<float, T>), MuonUpdate, 256)
KERNEL(muon_update_bf16_bf16, (muon_update<bf16, bf16>), MuonUpdate, 256)
KERNEL(muon_update_f16_f16, (muon_update<f16, f16>), MuonUpdate, 256)
