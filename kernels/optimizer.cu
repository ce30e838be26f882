// Sums, clipping, AdamW.
//
// Bytes moved for each element: sums 2 or 4; AdamW 4 + 3·8 + 2 with an f32 gradient and a bf16 live
// weight (grad; master, m and v read and written; live written). Sums are taken by a fixed number of
// blocks and added up in their order.
#include "common.cuh"

// Most partial sums of a tensor; before them lies how many there are.
constexpr int SUM_PARTS = 256;

struct SumParts {
    const void* x;
    double* parts;
    uint64_t numel;
    uint32_t square, vector;
};

template <class T, int V> __device__ double sum_by(const SumParts& a) {
    double sum = 0;
    each<V>(a.numel, [&](uint64_t at) {
        float x[V];
        load(static_cast<const T*>(a.x) + at, x);
#pragma unroll
        for (int i = 0; i < V; i++) sum += a.square ? (double)x[i] * x[i] : (double)x[i];
    });
    return sum;
}

template <class T> __device__ void sum_parts(const SumParts& a) {
    double sum = a.vector ? sum_by<T, WIDE<T>>(a) : sum_by<T, 1>(a);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        a.parts[1 + blockIdx.x] = sum;
        if (blockIdx.x == 0) a.parts[0] = gridDim.x;
    }
}
KERNEL(sum_parts_f32, (sum_parts<float>), SumParts, 256)
KERNEL(sum_parts_bf16, (sum_parts<bf16>), SumParts, 256)

struct SumFinish {
    const double* parts; // [tensors, 1 + SUM_PARTS]
    float* out;
    uint32_t add, unused;
};

__device__ void finish_sum(const SumFinish& a) {
    const double* parts = a.parts + (uint64_t)blockIdx.x * (1 + SUM_PARTS);
    double sum = threadIdx.x < parts[0] ? parts[1 + threadIdx.x] : 0.0;
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.out[blockIdx.x] = a.add ? a.out[blockIdx.x] + (float)sum : (float)sum;
}
KERNEL(sum_finish, finish_sum, SumFinish, 256)

// A digest of the bits: Σ over elements of `digest_term` of device/backend.rs, modulo 2^64, so that
// the order does not matter. Bytes moved for each element: its own.
struct DigestParts {
    const void* x;
    uint64_t* parts;
    uint64_t numel;
    uint32_t vector, unused;
};

__device__ __forceinline__ uint64_t digest_term(uint64_t at, uint32_t bits) {
    uint64_t x = at * 0x9e3779b97f4a7c15u ^ ((uint64_t)bits + 1) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

template <class Bits> __device__ void digest_parts(const DigestParts& a) {
    const Bits* x = static_cast<const Bits*>(a.x);
    uint64_t sum = 0;
    if (a.vector) {
        constexpr int V = WIDE<Bits>;
        each<V>(a.numel, [&](uint64_t at) {
            uint4 raw = *reinterpret_cast<const uint4*>(x + at);
            Bits bits[V];
            memcpy(bits, &raw, 16);
#pragma unroll
            for (int i = 0; i < V; i++) sum += digest_term(at + i, bits[i]);
        });
    } else {
        each<1>(a.numel, [&](uint64_t at) { sum += digest_term(at, x[at]); });
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.parts[blockIdx.x] = sum;
}
KERNEL(digest_parts_f32, (digest_parts<uint32_t>), DigestParts, 256)
KERNEL(digest_parts_bf16, (digest_parts<uint16_t>), DigestParts, 256)

struct DigestFinish {
    const uint64_t* parts;
    uint64_t* out;
    uint64_t count;
};

__device__ void finish_digest(const DigestFinish& a) {
    uint64_t sum = 0;
    for (uint64_t i = threadIdx.x; i < a.count; i += blockDim.x) sum += a.parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *a.out = sum;
}
KERNEL(digest_finish, finish_digest, DigestFinish, 256)

struct Clip {
    const float* sums;
    float* out; // norm, factor
    uint32_t count;
    float max_norm;
};

__device__ void clip_by_norm(const Clip& a) {
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < a.count; i += 32) sum += a.sums[i];
    float norm = (float)sqrt(warp_sum(sum));
    if (threadIdx.x == 0) {
        bool finite = norm - norm == 0.0f;
        a.out[0] = norm;
        a.out[1] = finite ? fminf(a.max_norm / (norm + 1e-6f), 1.0f) : NAN;
    }
}
KERNEL(clip, clip_by_norm, Clip, 32)

struct AdamW {
    const void* grad;
    float* master;
    float* m;
    float* v;
    void* live; // null where it is the master
    const float* factor;
    uint64_t numel;
    float keep;    // 1 − lr·weight_decay
    float beta1, beta2;
    float step;    // lr / (1 − β₁ᵗ)
    float rescale; // 1 / √(1 − β₂ᵗ)
    float eps;
    uint32_t vector, unused;
};

template <class G, class L, int V> __device__ void adamw_by(const AdamW& a, float factor) {
    each<V>(a.numel, [&](uint64_t at) {
        float g[V], w[V], m[V], v[V];
        load(static_cast<const G*>(a.grad) + at, g);
        load(a.master + at, w);
        load(a.m + at, m);
        load(a.v + at, v);
#pragma unroll
        for (int i = 0; i < V; i++) {
            g[i] *= factor;
            m[i] = fmaf(g[i] - m[i], 1.0f - a.beta1, m[i]);
            v[i] = fmaf(g[i] * g[i], 1.0f - a.beta2, a.beta2 * v[i]);
            w[i] = fmaf(-a.step, m[i] / fmaf(sqrtf(v[i]), a.rescale, a.eps), w[i] * a.keep);
        }
        store(a.master + at, w);
        store(a.m + at, m);
        store(a.v + at, v);
        if (a.live) store(static_cast<L*>(a.live) + at, w);
    });
}

template <class G, class L> __device__ void adamw(const AdamW& a) {
    float factor = *a.factor;
    if (factor != factor) return; // NaN skips the update
    if (a.vector) adamw_by<G, L, sizeof(G) == 4 && sizeof(L) == 4 ? 4 : 8>(a, factor);
    else adamw_by<G, L, 1>(a, factor);
}
KERNEL(adamw_f32_f32, (adamw<float, float>), AdamW, 256)
KERNEL(adamw_f32_bf16, (adamw<float, bf16>), AdamW, 256)
KERNEL(adamw_bf16_f32, (adamw<bf16, float>), AdamW, 256)
KERNEL(adamw_bf16_bf16, (adamw<bf16, bf16>), AdamW, 256)
