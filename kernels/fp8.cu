// 8-bit floats (Micikevicius et al. 2022): maxima of lines, their scales, and codes, of which lines
// become rows.
//
// Bytes moved for each element of size s: maxima s; codes s + 1.
#include "common.cuh"

// A magnitude's bits: they compare as numbers do, and NaN is above all.
__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ uint32_t larger(uint32_t x, uint32_t y) { return x > y ? x : y; }

// Of a block of whole warps; every thread gets it.
__device__ __forceinline__ uint32_t block_largest(uint32_t x) {
    __shared__ uint32_t parts[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int with = 16; with > 0; with /= 2) x = larger(x, __shfl_xor_sync(~0u, x, with));
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    x = lane < warps ? parts[lane] : 0;
    for (int with = 16; with > 0; with /= 2) x = larger(x, __shfl_xor_sync(~0u, x, with));
    return x;
}

// A block works on one row.
template <class T, int V> __device__ void row_maxima_by(const LineMaxima& a) {
    uint64_t row = blockIdx.x;
    const T* from = static_cast<const T*>(a.x) + row * a.cols;
    uint32_t most = 0;
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += blockDim.x * V) {
        float x[V];
        load(from + col, x);
#pragma unroll
        for (int i = 0; i < V; i++) most = larger(most, magnitude(x[i]));
    }
    most = block_largest(most);
    if (threadIdx.x == 0) a.maxima[row] = __uint_as_float(most);
}

template <class T> __device__ void row_maxima(const LineMaxima& a) {
    if (a.vector) row_maxima_by<T, WIDE<T>>(a);
    else row_maxima_by<T, 1>(a);
}
KERNELS(row_maxima, row_maxima<T>, LineMaxima, 256)

// A thread works on V columns in some rows. The maxima are 0 before.
template <class T, int V> __device__ void column_maxima_by(const LineMaxima& a) {
    uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (col >= a.cols) return;
    uint32_t most[V] = {};
    uint64_t step = (uint64_t)gridDim.y * blockDim.y;
    for (uint64_t row = (uint64_t)blockIdx.y * blockDim.y + threadIdx.y; row < a.rows; row += step) {
        float x[V];
        load(static_cast<const T*>(a.x) + row * a.cols + col, x);
#pragma unroll
        for (int i = 0; i < V; i++) most[i] = larger(most[i], magnitude(x[i]));
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        atomicMax(reinterpret_cast<uint32_t*>(a.maxima) + col + i, most[i]);
}

template <class T> __device__ void column_maxima(const LineMaxima& a) {
    if (a.vector) column_maxima_by<T, WIDE<T>>(a);
    else column_maxima_by<T, 1>(a);
}
KERNELS(column_maxima, column_maxima<T>, LineMaxima, 256)

// What a maximum is taken for at least: 2^-100.
__device__ __forceinline__ float scale_of(uint32_t most, float largest) {
    float maximum = __uint_as_float(most);
    return (maximum < 7.8886090522101181e-31f ? 7.8886090522101181e-31f : maximum) / largest;
}

// Of each line; or, by one block, of all of them.
__device__ void scales_of(const Fp8Scales& a) {
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    if (!a.whole) {
        for (uint32_t line = thread; line < a.lines; line += step) {
            uint32_t most = 0;
            for (uint32_t share = 0; share < a.shares; share++)
                most = larger(most, magnitude(a.maxima[(uint64_t)share * a.lines + line]));
            a.scales[line] = scale_of(most, a.largest);
        }
        return;
    }
    uint32_t most = 0;
    for (uint64_t at = threadIdx.x; at < (uint64_t)a.shares * a.lines; at += blockDim.x)
        most = larger(most, magnitude(a.maxima[at]));
    float scale = scale_of(block_largest(most), a.largest);
    for (uint32_t line = threadIdx.x; line < a.lines; line += blockDim.x) a.scales[line] = scale;
}
KERNEL(fp8_scales, scales_of, Fp8Scales, 256)

// The nearest code, of two the even one (`Fp8::encode` of base/fp8.rs).
template <bool E5M2> __device__ __forceinline__ uint8_t encode(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t codes;
    if (E5M2) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
    else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
    return (uint8_t)codes;
#else
    constexpr uint32_t FRACTION = E5M2 ? 2 : 3, DROP = 23 - FRACTION, REBIAS = E5M2 ? 112 : 120;
    constexpr uint32_t BEYOND = E5M2 ? 0x7c : 0x7e;
    uint32_t sign = __float_as_uint(x) >> 24 & 0x80, size = magnitude(x), code;
    if (size > 0x7f800000u) return (uint8_t)(sign | 0x7f);
    if (size < (REBIAS + 1) << 23) {
        // The sum's last bit is worth a unit: the addition rounds to whole units.
        uint32_t units = (REBIAS + 1 - FRACTION + 23) << 23;
        code = __float_as_uint(__uint_as_float(size) + __uint_as_float(units)) - units;
    } else {
        code = ((size + (1u << (DROP - 1)) - 1 + (size >> DROP & 1)) >> DROP) - (REBIAS << FRACTION);
        code = code < BEYOND ? code : BEYOND;
    }
    return (uint8_t)(sign | code);
#endif
}

template <class T, bool E5M2, int V> __device__ void fp8_rows_by(const Fp8Codes& a) {
    each_piece<V>(a.rows, a.cols, [&](uint64_t row, uint32_t col) {
        uint64_t at = row * a.cols + col;
        float x[V], factor = 1.0f / a.scales[row];
        load(static_cast<const T*>(a.x) + at, x);
        uint8_t codes[V];
#pragma unroll
        for (int i = 0; i < V; i++) codes[i] = encode<E5M2>(x[i] * factor);
        uint8_t* to = static_cast<uint8_t*>(a.codes) + at;
        if constexpr (V == 1) {
            *to = codes[0];
        } else {
#pragma unroll
            for (int i = 0; i < V; i += 4) {
                uint32_t word;
                memcpy(&word, codes + i, 4);
                *reinterpret_cast<uint32_t*>(to + i) = word;
            }
        }
    });
}

template <class T, bool E5M2> __device__ void fp8_rows(const Fp8Codes& a) {
    if (a.vector) fp8_rows_by<T, E5M2, WIDE<T>>(a);
    else fp8_rows_by<T, E5M2, 1>(a);
}
KERNELS(fp8_rows_e4m3, (fp8_rows<T, false>), Fp8Codes, 256)
KERNELS(fp8_rows_e5m2, (fp8_rows<T, true>), Fp8Codes, 256)

// A block turns a tile of 64 rows and columns by way of shared memory; lines of its tile are 4 bytes
// longer, so that threads of a warp write to different banks.
constexpr int TILE = 64, LINE = TILE + 4;

template <class T, bool E5M2> __device__ void fp8_columns(const Fp8Codes& a) {
    __shared__ uint32_t tile[TILE * LINE / 4];
    uint8_t* codes = reinterpret_cast<uint8_t*>(tile);
    uint64_t first_row = (uint64_t)blockIdx.y * TILE;
    uint32_t first_col = blockIdx.x * TILE, line = threadIdx.x % TILE, col = first_col + line;
    if (col < a.cols) {
        float factor = 1.0f / a.scales[col];
        for (uint32_t i = threadIdx.x / TILE; i < TILE && first_row + i < a.rows; i += 256 / TILE) {
            float x[1];
            load(static_cast<const T*>(a.x) + (first_row + i) * a.cols + col, x);
            codes[line * LINE + i] = encode<E5M2>(x[0] * factor);
        }
    }
    __syncthreads();
    // 16 bytes of a line each.
    line = threadIdx.x / 4;
    uint32_t part = threadIdx.x % 4 * 16;
    uint64_t row = first_row + part;
    if (first_col + line >= a.cols || row >= a.rows) return;
    uint8_t* to = static_cast<uint8_t*>(a.codes) + (first_col + line) * a.rows + row;
    if (a.vector) {
        uint4 raw;
        memcpy(&raw, codes + line * LINE + part, 16);
        *reinterpret_cast<uint4*>(to) = raw;
    } else {
        for (uint32_t i = 0; i < 16 && row + i < a.rows; i++) to[i] = codes[line * LINE + part + i];
    }
}
KERNELS(fp8_columns_e4m3, (fp8_columns<T, false>), Fp8Codes, 256)
KERNELS(fp8_columns_e5m2, (fp8_columns<T, true>), Fp8Codes, 256)
