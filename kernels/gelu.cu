// GELU (Hendrycks & Gimpel 2016) and biases, where they are not the epilogue of a matrix product.
//
// Bytes moved for each element of size s: gelu 2s; gelu_backward 3s; bias_rows s.
#include "common.cuh"

// x·σ(2u) with u = √(2/π)·(x + 0.044715·x³), which does not cancel for negative x.
__device__ __forceinline__ float sigmoid_of(float x) {
    float twice = 1.5957691216f * x * fmaf(0.044715f * x, x, 1.0f);
    return 1.0f / (1.0f + expf(-fmaxf(twice, -40.0f)));
}

__device__ __forceinline__ float normal_cdf(float x) { return 0.5f * erfcf(-0.70710678f * x); }

template <bool EXACT> __device__ __forceinline__ float gelu_of(float x) {
    return x * (EXACT ? normal_cdf(x) : sigmoid_of(x));
}

template <bool EXACT> __device__ __forceinline__ float slope_of(float x) {
    if (EXACT) return fmaf(x, 0.39894228f * expf(-0.5f * x * x), normal_cdf(x));
    float s = sigmoid_of(x);
    float slope = 1.5957691216f * fmaf(3 * 0.044715f * x, x, 1.0f);
    return fmaf(x * slope * s, 1.0f - s, s);
}

template <class T, bool EXACT, int V> __device__ void gelu_by(const Gelu& a) {
    each<V>(a.numel, [&](uint64_t at) {
        float x[V];
        load(static_cast<const T*>(a.x) + at, x);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] = gelu_of<EXACT>(x[i]);
        put(static_cast<T*>(a.y) + at, x, a.add);
    });
}

template <class T, bool EXACT> __device__ void gelu(const Gelu& a) {
    if (a.vector) gelu_by<T, EXACT, WIDE<T>>(a);
    else gelu_by<T, EXACT, 1>(a);
}
KERNELS(gelu_tanh, (gelu<T, false>), Gelu, 256)
KERNELS(gelu_exact, (gelu<T, true>), Gelu, 256)

// y *= gelu'(x)
template <class T, bool EXACT, int V> __device__ void gelu_backward_by(const Gelu& a) {
    each<V>(a.numel, [&](uint64_t at) {
        float x[V], y[V];
        load(static_cast<const T*>(a.x) + at, x);
        load(static_cast<const T*>(a.y) + at, y);
#pragma unroll
        for (int i = 0; i < V; i++) y[i] *= slope_of<EXACT>(x[i]);
        store(static_cast<T*>(a.y) + at, y);
    });
}

template <class T, bool EXACT> __device__ void gelu_backward(const Gelu& a) {
    if (a.vector) gelu_backward_by<T, EXACT, WIDE<T>>(a);
    else gelu_backward_by<T, EXACT, 1>(a);
}
KERNELS(gelu_backward_tanh, (gelu_backward<T, false>), Gelu, 256)
KERNELS(gelu_backward_exact, (gelu_backward<T, true>), Gelu, 256)

// x = bias in every row.
template <class T, int V> __device__ void bias_rows_by(const BiasRows& a) {
    each_piece<V>(a.rows, a.cols, [&](uint64_t row, uint32_t col) {
        float bias[V];
        load(static_cast<const T*>(a.bias) + col, bias);
        store(static_cast<T*>(a.x) + row * a.cols + col, bias);
    });
}

template <class T> __device__ void bias_rows(const BiasRows& a) {
    if (a.vector) bias_rows_by<T, WIDE<T>>(a);
    else bias_rows_by<T, 1>(a);
}
KERNELS(bias_rows, bias_rows<T>, BiasRows, 256)
