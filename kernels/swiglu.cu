// SwiGLU (Shazeer 2020): y = silu(gate)·value, where gates and values alternate in a row of x.
//
// Bytes moved for each element of y of size s: forward 3s (x, y), backward 5s (dy, x, dx).
#include "common.cuh"

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T, int V> __device__ void swiglu_by(const Swiglu& a) {
    each<V>(a.numel, [&](uint64_t at) {
        float gates[V], values[V];
        if constexpr (V == 1) {
            gates[0] = widen(static_cast<const T*>(a.x)[2 * at]);
            values[0] = widen(static_cast<const T*>(a.x)[2 * at + 1]);
        } else {
            float pairs[2 * V];
            load(static_cast<const T*>(a.x) + 2 * at, pairs);
#pragma unroll
            for (int i = 0; i < V; i++) {
                gates[i] = pairs[2 * i];
                values[i] = pairs[2 * i + 1];
            }
        }
#pragma unroll
        for (int i = 0; i < V; i++) gates[i] = gates[i] * sigmoid(gates[i]) * values[i];
        store(static_cast<T*>(a.y) + at, gates);
    });
}

template <class T> __device__ void swiglu(const Swiglu& a) {
    if (a.vector) swiglu_by<T, WIDE<T>>(a);
    else swiglu_by<T, 1>(a);
}
KERNELS(swiglu, swiglu<T>, Swiglu, 256)

// Gradients of a gate and of its value, stored at their columns.
__device__ __forceinline__ void slopes(float dy, float& gate, float& value) {
    float s = sigmoid(gate), dvalue = dy * gate * s;
    gate = dy * value * s * fmaf(gate, 1.0f - s, 1.0f);
    value = dvalue;
}

template <class T, int V> __device__ void swiglu_backward_by(const Swiglu& a) {
    each<V>(a.numel, [&](uint64_t at) {
        const T* x = static_cast<const T*>(a.x) + 2 * at;
        T* dx = static_cast<T*>(a.dx) + 2 * at;
        float dy[V];
        load(static_cast<const T*>(a.y) + at, dy);
        if constexpr (V == 1) {
            float gate = widen(x[0]), value = widen(x[1]);
            slopes(dy[0], gate, value);
            dx[0] = narrow<T>(gate);
            dx[1] = narrow<T>(value);
        } else {
            float pairs[2 * V];
            load(x, pairs);
#pragma unroll
            for (int i = 0; i < V; i++) slopes(dy[i], pairs[2 * i], pairs[2 * i + 1]);
            store(dx, pairs);
        }
    });
}

template <class T> __device__ void swiglu_backward(const Swiglu& a) {
    if (a.vector) swiglu_backward_by<T, WIDE<T>>(a);
    else swiglu_backward_by<T, 1>(a);
}
KERNELS(swiglu_backward, swiglu_backward<T>, Swiglu, 256)
