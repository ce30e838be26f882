// Sums, clipping, AdamW.
//
// Bytes moved for each element of size s: sums s. AdamW, with a gradient of size g and a rounded weight of
// size s: g + 3·8 + s (master, m and v are read and written), 30 for an f32 gradient and a half rounded
// weight. Sums are taken by a fixed number of blocks and added in block order.
#include "common.cuh"

// Maximum number of partial sums of a tensor; their actual number is stored before them.
constexpr int SUM_PARTS = 1056;

// Sums this block's share of its tensor.
template <class T, int V> __device__ double sum_by(const SumParts& a, uint32_t t, uint32_t block, uint32_t blocks) {
    const T* x = static_cast<const T*>(a.x[t]);
    uint64_t step = (uint64_t)blocks * blockDim.x * V;
    double sum = 0;
    for (uint64_t at = ((uint64_t)block * blockDim.x + threadIdx.x) * V; at < a.numel[t]; at += step) {
        float values[V];
        load(x + at, values);
#pragma unroll
        for (int i = 0; i < V; i++) {
            double value = values[i];
            sum += a.term == 0 ? value : a.term == 1 ? value * value : (double)(value == 0.0);
        }
    }
    return sum;
}

template <class T> __device__ void sum_parts(const SumParts& a) {
    uint32_t t = 0;
    while (a.first[t + 1] <= blockIdx.x) t++;
    uint32_t block = blockIdx.x - a.first[t], blocks = a.first[t + 1] - a.first[t];
    double sum = a.vector ? sum_by<T, WIDE<T>>(a, t, block, blocks) : sum_by<T, 1>(a, t, block, blocks);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        double* parts = a.parts + (uint64_t)a.slot[t] * (1 + SUM_PARTS);
        parts[1 + block] = sum;
        if (block == 0) parts[0] = blocks;
    }
}
KERNELS(sum_parts, sum_parts<T>, SumParts, 256)

__device__ void finish_sum(const SumFinish& a) {
    const double* parts = a.parts + (uint64_t)blockIdx.x * (1 + SUM_PARTS);
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < parts[0]; i += blockDim.x) sum += parts[1 + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.out[blockIdx.x] = a.add ? a.out[blockIdx.x] + (float)sum : (float)sum;
}
KERNEL(sum_finish, finish_sum, SumFinish, 256)

// A count as count % high and count / high, both exact in f32.
__device__ void finish_count(const CountFinish& a) {
    const double* parts = a.parts + (uint64_t)blockIdx.x * (1 + SUM_PARTS);
    double count = 0;
    for (uint32_t i = threadIdx.x; i < parts[0]; i += blockDim.x) count += parts[1 + i];
    count = block_sum(count);
    if (threadIdx.x == 0) {
        double highs = floor(count / a.high);
        a.highs[blockIdx.x] = (float)highs;
        a.lows[blockIdx.x] = (float)(count - highs * a.high);
    }
}
KERNEL(count_finish, finish_count, CountFinish, 256)

// Digest of the bits: Σ over elements of `digest_term` of device/digest.rs, modulo 2^64, so that the
// order does not matter. Bytes moved for each element: its size.
__device__ __forceinline__ uint64_t digest_term(uint64_t at, uint32_t bits) {
    uint64_t x = (bits ^ (at + 1) * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
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
KERNEL(digest_parts_f16, (digest_parts<uint16_t>), DigestParts, 256)
KERNEL(digest_parts_u8, (digest_parts<uint8_t>), DigestParts, 256)

__device__ void finish_digest(const DigestFinish& a) {
    uint64_t sum = 0;
    for (uint64_t i = threadIdx.x; i < a.count; i += blockDim.x) sum += a.parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *a.out = sum;
}
KERNEL(digest_finish, finish_digest, DigestFinish, 256)

__device__ void clip_by_norm(const Clip& a) {
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < a.count; i += 32) sum += a.sums[i];
    float scale = *a.scale;
    float norm = (float)(sqrt(warp_sum(sum)) / scale);
    if (threadIdx.x == 0) {
        bool finite = norm - norm == 0.0f;
        a.out[0] = norm;
        a.out[1] = finite ? fminf(a.max_norm / (norm + 1e-6f), 1.0f) / scale : NAN;
    }
}
KERNEL(clip, clip_by_norm, Clip, 32)

// Advances the loss scaler, in one thread on the device, so that no step waits for the host.
__device__ void step_loss_scale(const LossScaleStep& a) {
    int64_t &row = a.counts[0], &left = a.counts[1], &updates = a.counts[2];
    int64_t &skipped = a.counts[3], &stuck = a.counts[4];
    float scale = *a.scale;
    if (stuck) {
        *a.factor = NAN;
        *a.status = 2.0f;
        return;
    }
    bool overflow = *a.factor != *a.factor;
    if (overflow) {
        row = 0;
        left -= 1;
        skipped += 1;
        if (left <= 0) {
            stuck = scale <= a.min;
            scale = fmaxf(0.5f * scale, a.min);
        }
    } else {
        row += 1;
        updates += 1;
        if (row >= a.window) {
            row = 0;
            left = a.hysteresis;
            scale *= a.growth;
        }
    }
    *a.status = (float)(overflow + stuck);
    *a.scale = scale;
}
KERNEL(loss_scale_step, step_loss_scale, LossScaleStep, 1)

// Cancels the update of a step whose loss or norm is above its limit, in one thread.
__device__ void take_back_above(const SkipAbove& a) {
    bool above = *a.loss > a.max_loss || *a.norm > a.max_norm;
    if (!above || *a.status != 0.0f) return;
    a.counts[2] -= 1;
    a.counts[3] += 1;
    *a.factor = NAN;
    *a.status = 3.0f;
}
KERNEL(skip_above, take_back_above, SkipAbove, 1)

// Bias corrections of AdamW, in one thread.
__device__ void adam_corrections(const AdamScalars& a) {
    double updates = (double)*a.updates;
    a.out[0] = (float)(a.lr / (1.0 - pow((double)a.beta1, updates)));
    a.out[1] = (float)(1.0 / sqrt(1.0 - pow((double)a.beta2, updates)));
}
KERNEL(adam_scalars, adam_corrections, AdamScalars, 1)

// Elements per piece: a block updates one piece, then takes its next one.
constexpr uint32_t ADAMW_PIECE = 8192;

// Elements at .. end of tensor t.
template <class G, class L, int V>
__device__ __forceinline__ void adamw_by(const AdamW& a, float factor, uint32_t t, uint64_t at, uint64_t end) {
    const G* grad = static_cast<const G*>(a.grad[t]);
    float *master = a.master[t], *first = a.m[t], *second = a.v[t];
    L* weight = static_cast<L*>(a.weight[t]);
    float step = a.scalars[1] * a.lr_scale[t], rescale = a.scalars[2], keep = a.keep[t];
    for (at += threadIdx.x * V; at < end; at += blockDim.x * V) {
        float g[V], w[V], m[V], v[V];
        load(grad + at, g);
        load(master + at, w);
        load(first + at, m);
        load(second + at, v);
#pragma unroll
        for (int i = 0; i < V; i++) {
            // Rounds before the subtraction, as the host does: the compiler must not fuse them.
            g[i] = __fmul_rn(g[i], factor);
            m[i] = fmaf(g[i] - m[i], 1.0f - a.beta1, m[i]);
            v[i] = fmaf(g[i] * g[i], 1.0f - a.beta2, a.beta2 * v[i]);
            w[i] = fmaf(-step, m[i] / fmaf(sqrtf(v[i]), rescale, a.eps), w[i] * keep);
        }
        store(master + at, w);
        store(first + at, m);
        store(second + at, v);
        if (weight) store(weight + at, w);
    }
}

// AdamW of many tensors: their pieces, in a row, are divided among the blocks.
template <class G, class L> __device__ void adamw(const AdamW& a) {
    float factor = a.scalars[0];
    if (factor != factor) return; // NaN skips the update
    uint32_t t = 0;
    for (uint32_t piece = blockIdx.x; piece < a.first[a.count]; piece += gridDim.x) {
        while (a.first[t + 1] <= piece) t++;
        uint64_t at = (uint64_t)(piece - a.first[t]) * ADAMW_PIECE, end = at + ADAMW_PIECE;
        end = end < a.numel[t] ? end : a.numel[t];
        if (a.vector) adamw_by<G, L, sizeof(G) == 4 && sizeof(L) == 4 ? 4 : 8>(a, factor, t, at, end);
        else adamw_by<G, L, 1>(a, factor, t, at, end);
    }
}
// A run uses f32 and one other dtype.
KERNELS(adamw_f32, (adamw<float, T>), AdamW, 256)
KERNEL(adamw_bf16_f32, (adamw<bf16, float>), AdamW, 256)
KERNEL(adamw_bf16_bf16, (adamw<bf16, bf16>), AdamW, 256)
KERNEL(adamw_f16_f32, (adamw<f16, float>), AdamW, 256)
KERNEL(adamw_f16_f16, (adamw<f16, f16>), AdamW, 256)
