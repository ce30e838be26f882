// AdamW with 8-bit moments, bit-identical to src/device/cpu/adam8bit.rs: products that the compiler
// might fuse are written as __fmul_rn or fmaf.
//
// Bytes moved for each element: a gradient of g, a rounded weight of s, and 8 of the master, 4 of codes, 16
// / block of scales: 18.25 for an f32 gradient, a half rounded weight and blocks of 64. A thread has eight
// elements, so that block / 8 adjacent lanes share a scale, and nothing else. The maps are in shared
// memory, since the lanes read different entries.
#include "common.cuh"
#include "dynamic_map.cuh"

constexpr int WIDTH = 8;

// Code of the map's nearest number.
__device__ __forceinline__ uint32_t nearest(const DynamicMap& map, float x) {
    uint32_t bits = __float_as_uint(x);
    uint32_t size = (bits & 0x7fffffffu) >> map.shift;
    uint32_t bucket = (size > map.low ? size - map.low : 0) + (bits >> 31) * map.count;
    uint32_t first = map.first[bucket < sizeof map.first ? bucket : sizeof map.first - 1];
    return first + (x > map.midpoints[first]);
}

__device__ __forceinline__ void copy_map(const DynamicMap& from, DynamicMap& to) {
    static_assert(sizeof(DynamicMap) % 4 == 0);
    for (uint32_t at = 4 * threadIdx.x; at < sizeof(DynamicMap); at += 4 * blockDim.x)
        memcpy(reinterpret_cast<char*>(&to) + at, reinterpret_cast<const char*>(&from) + at, 4);
}

__device__ __forceinline__ void
decode(const DynamicMap& map, const uint8_t* codes, float scale, float (&x)[WIDTH]) {
    uint64_t all = *reinterpret_cast<const uint64_t*>(codes);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) x[i] = __fmul_rn(map.values[all >> 8 * i & 255], scale);
}

// Encodes eight elements per lane. All lanes of the warp must call it; the lanes of one quantization
// block get the same scale.
__device__ __forceinline__ float
encode(const DynamicMap& map, uint32_t lanes, const float (&x)[WIDTH], uint64_t& codes) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) largest = fmaxf(largest, fabsf(x[i]));
    for (uint32_t with = lanes / 2; with > 0; with /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, with));
    float by = largest > 0.0f ? largest : 1.0f;
    codes = 0;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) codes |= (uint64_t)nearest(map, x[i] / by) << 8 * i;
    return largest;
}

template <class G, class L> __device__ void adam8bit(const Adam8bit& a) {
    SHARED(DynamicMap, m_map, );
    SHARED(DynamicMap, v_map, );
    float factor = a.scalars[0], step = a.scalars[1] * a.lr_scale, rescale = a.scalars[2];
    if (factor != factor) return; // NaN skips the update
    copy_map(SIGNED_MAP, m_map);
    copy_map(UNSIGNED_MAP, v_map);
    __syncthreads();
    uint32_t lanes = a.block / WIDTH;
    uint64_t together = (uint64_t)blockDim.x * WIDTH;
    for (uint64_t base = blockIdx.x * together; base < a.numel; base += gridDim.x * together) {
        uint64_t at = base + threadIdx.x * WIDTH;
        bool there = at < a.numel;
        float g[WIDTH] = {}, w[WIDTH] = {}, m[WIDTH] = {}, v[WIDTH] = {};
        if (there) {
            load(static_cast<const G*>(a.grad) + at, g);
            load(a.master + at, w);
            decode(m_map, a.m_codes + at, a.m_scales[at / a.block], m);
            decode(v_map, a.v_codes + at, a.v_scales[at / a.block], v);
        }
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            g[i] = __fmul_rn(g[i], factor);
            m[i] = fmaf(g[i] - m[i], 1.0f - a.beta1, m[i]);
            float square = __fmul_rn(a.beta2, __fmul_rn(v[i], v[i]));
            v[i] = sqrtf(fmaf(__fmul_rn(g[i], g[i]), 1.0f - a.beta2, square));
            w[i] = fmaf(-step, m[i] / fmaf(v[i], rescale, a.eps), __fmul_rn(w[i], a.keep));
        }
        uint64_t m_codes, v_codes;
        float m_scale = encode(m_map, lanes, m, m_codes);
        float v_scale = encode(v_map, lanes, v, v_codes);
        if (!there) continue;
        store(a.master + at, w);
        if (a.weight) store(static_cast<L*>(a.weight) + at, w);
        *reinterpret_cast<uint64_t*>(a.m_codes + at) = m_codes;
        *reinterpret_cast<uint64_t*>(a.v_codes + at) = v_codes;
        if (threadIdx.x % lanes == 0) {
            a.m_scales[at / a.block] = m_scale;
            a.v_scales[at / a.block] = v_scale;
        }
    }
}
// A run uses f32 and one other dtype.
KERNELS(adam8bit_f32, (adam8bit<float, T>), Adam8bit, 256)
KERNEL(adam8bit_bf16_f32, (adam8bit<bf16, float>), Adam8bit, 256)
KERNEL(adam8bit_bf16_bf16, (adam8bit<bf16, bf16>), Adam8bit, 256)
KERNEL(adam8bit_f16_f32, (adam8bit<f16, float>), Adam8bit, 256)
KERNEL(adam8bit_f16_f16, (adam8bit<f16, f16>), Adam8bit, 256)
