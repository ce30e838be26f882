// Part of cuBLASLt that gptrain calls, on the CPU. For tests only.
//
// Sums are in f32, in the order of the inner dimension. Documented restrictions of the real library that
// gptrain relies on are enforced here too: leading dimensions, the alignment promised to the heuristic,
// the alignment of bias and auxiliary matrices, and the requirements of 8-bit floats.
//
// The heuristic proposes several algorithms (see ALGORITHMS) with simulated times: the best is neither
// the first nor the one that claims to be the fastest. For fewer than all SMs another one is proposed
// first, and an algorithm runs only for the number of SMs it was proposed for.
#include "softgpu.h"
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

typedef int Status;
enum : Status { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
#define API extern "C" __attribute__((visibility("default"))) Status

extern "C" void softgpu_push(void* stream, std::function<void()>* work);
extern "C" void softgpu_take(void* stream, unsigned time);
extern "C" bool softgpu_is_cold(void* stream);

// cublasLt.h
enum { F32 = 0, F16 = 2, BF16 = 14, E4M3 = 28, E5M2 = 29 };
enum { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8, AUX_POINTER = 11, AUX_LD = 12, SM_COUNT_TARGET = 15 };
enum { A_SCALE = 17, B_SCALE = 18, FAST_ACCUM = 25, A_SCALE_MODE = 31, B_SCALE_MODE = 32 };
enum { SCALAR_32F = 0, OUTER_VEC_32F = 3 };
enum { COMPUTE_F32 = 68, COMPUTE_TF32 = 77 };
enum { DEFAULT = 1, BIAS = 4, GELU_AUX_BIAS = 164, DGELU = 192, BGRADB = 512 };
enum { MAX_WORKSPACE = 1, REDUCTIONS = 3, ALIGN_A = 5, ALIGN_D = 8 };
enum { CONFIG_REDUCTION = 3 };
enum { REDUCE_IN_PLACE = 1, REDUCE_IN_COMPUTE_TYPE = 2 };

// Fault of an algorithm.
enum Flaw { NONE, FAILS_ITS_CHECK, FAILS_AT_RUN, GIVES_OTHER_BITS };
typedef float Dot(const float* a, const float* b, int64_t depth, float sum);
// Adds a dot product to `sum`, with LANES partial sums.
template <int LANES> static float dot(const float* a, const float* b, int64_t depth, float sum) {
    float lanes[LANES] = {};
    int64_t l = 0;
    for (; l + LANES <= depth; l += LANES)
        for (int lane = 0; lane < LANES; lane++) lanes[lane] += a[l + lane] * b[l + lane];
    for (int lane = 0; l + lane < depth; lane++) lanes[lane] += a[l + lane] * b[l + lane];
    for (float part : lanes) sum += part;
    return sum;
}
// A sum as Hopper keeps it with fast accumulation: 14 bits after each 32 terms.
static float fast_dot(const float* a, const float* b, int64_t depth, float sum) {
    for (int64_t l = 0; l < depth; l += 32) {
        sum = dot<8>(a + l, b + l, std::min<int64_t>(32, depth - l), sum);
        uint32_t bits;
        memcpy(&bits, &sum, 4);
        bits &= ~0u << (23 - 13);
        memcpy(&sum, &bits, 4);
    }
    return sum;
}
struct Kind {
    unsigned time;
    size_t workspace; // all of it is overwritten
    Dot* dot;
    uint32_t reduction;
    Flaw flaw;
    unsigned cold = 0; // time that it takes more where its operands are not in the cache
};
static const Kind ALGORITHMS[] = {
    {30, 0, dot<8>, 0, NONE},
    {100, 0, dot<16>, 0, NONE},
    {10, 0, dot<8>, 0, FAILS_ITS_CHECK},
    {10, 0, dot<8>, 0, FAILS_AT_RUN},
    {20, 1 << 20, dot<4>, REDUCE_IN_COMPUTE_TYPE, NONE},
    {10, 0, dot<8>, REDUCE_IN_PLACE, GIVES_OTHER_BITS},
    {10, 1ull << 40, dot<8>, 0, NONE},
    {5, 0, dot<16>, 0, NONE, 200},
    // Twelve that no plan can have, and behind them the fastest that is sound: number 20.
#define FAILS {10, 0, dot<8>, 0, FAILS_ITS_CHECK}
    FAILS, FAILS, FAILS, FAILS, FAILS, FAILS, FAILS, FAILS, FAILS, FAILS, FAILS, FAILS,
    {15, 0, dot<4>, 0, NONE},
};
constexpr unsigned COUNT = sizeof ALGORITHMS / sizeof *ALGORITHMS;

typedef std::map<int, std::vector<char>> Attributes;
struct Layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};
struct Descriptor {
    int compute;
    Attributes set;
};
struct Preference {
    Attributes set;
};
struct Heuristic {
    struct {
        uint64_t data[8];
    } algorithm;
    size_t workspace;
    Status state;
    float waves;
    int reserved[4];
};

// Bytes of an attribute's value, as cublasLt.h documents them; another size is refused.
static const std::map<int, size_t> DESCRIPTOR_SIZES = {
    {TRANSA, 4},   {TRANSB, 4},   {EPILOGUE, 4},   {BIAS_POINTER, 8}, {AUX_POINTER, 8},  {AUX_LD, 8},
    {A_SCALE, 8},  {B_SCALE, 8},  {FAST_ACCUM, 1}, {A_SCALE_MODE, 4}, {B_SCALE_MODE, 4}, {SM_COUNT_TARGET, 4},
};
static const std::map<int, size_t> PREFERENCE_SIZES = {
    {MAX_WORKSPACE, 8}, {REDUCTIONS, 4}, {ALIGN_A, 4}, {ALIGN_A + 1, 4}, {ALIGN_A + 2, 4}, {ALIGN_D, 4},
};

static Status set(Attributes& a, const std::map<int, size_t>& sizes, int key, const void* value, size_t bytes) {
    auto size = sizes.find(key);
    if (size == sizes.end() || size->second != bytes) return INVALID_VALUE;
    a[key].assign((const char*)value, (const char*)value + bytes);
    return OK;
}
template <class T> static T get(const Attributes& a, int key, T otherwise) {
    auto found = a.find(key);
    if (found == a.end() || found->second.size() != sizeof(T)) return otherwise;
    T value;
    memcpy(&value, found->second.data(), sizeof value);
    return value;
}
// 8-bit floats (Micikevicius et al. 2022): 1, 4, 3 bits with no infinity, and 1, 5, 2 as in IEEE 754.
static float of_fp8(int type, uint8_t code) {
    int fraction = type == E4M3 ? 3 : 2, bias = type == E4M3 ? 7 : 15;
    int exponent = (code & 0x7f) >> fraction, part = code & ((1 << fraction) - 1);
    float size = exponent ? std::ldexp((float)(part | 1 << fraction), exponent - bias - fraction)
                          : std::ldexp((float)part, 1 - bias - fraction);
    if (type == E4M3 && (code & 0x7f) == 0x7f) size = NAN;
    if (type == E5M2 && exponent == 31) size = part ? NAN : INFINITY;
    return code & 0x80 ? -size : size;
}
static bool is_fp8(int type) { return type == E4M3 || type == E5M2; }
static float load(int type, const void* p, int64_t i) {
    if (type == F32) return ((const float*)p)[i];
    if (type == F16) return __half2float(((const __half*)p)[i]);
    if (is_fp8(type)) return of_fp8(type, ((const uint8_t*)p)[i]);
    return __bfloat162float(((const __nv_bfloat16*)p)[i]);
}
static void store(int type, void* p, int64_t i, float x) {
    if (type == F32) ((float*)p)[i] = x;
    else if (type == F16) ((__half*)p)[i] = __float2half_rn(x);
    else ((__nv_bfloat16*)p)[i] = __float2bfloat16(x);
}

// Rounds to 10 bits of fraction, as cvt.rna.tf32 does.
static float tf32(float x) {
    return std::isfinite(x) ? __uint_as_float((__float_as_uint(x) + 0x1000) & ~0x1fffu) : x;
}

static float gelu(float x) {
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}
static float gelu_slope(float x) {
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

API cublasLtCreate(void** handle) {
    *handle = new char;
    return OK;
}
API cublasLtDestroy(char* handle) {
    delete handle;
    return OK;
}
extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 130000; }
API cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    *layout = new Layout{type, rows, cols, ld};
    return OK;
}
API cublasLtMatrixLayoutDestroy(Layout* layout) {
    delete layout;
    return OK;
}
API cublasLtMatmulDescCreate(Descriptor** d, int compute, int scale) {
    if ((compute != COMPUTE_F32 && compute != COMPUTE_TF32) || scale != F32) return NOT_SUPPORTED;
    *d = new Descriptor{compute, {}};
    return OK;
}
API cublasLtMatmulDescDestroy(Descriptor* d) {
    delete d;
    return OK;
}
API cublasLtMatmulDescSetAttribute(Descriptor* d, int key, const void* value, size_t bytes) {
    return set(d->set, DESCRIPTOR_SIZES, key, value, bytes);
}
API cublasLtMatmulPreferenceCreate(Preference** p) {
    *p = new Preference;
    return OK;
}
API cublasLtMatmulPreferenceDestroy(Preference* p) {
    delete p;
    return OK;
}
API cublasLtMatmulPreferenceSetAttribute(Preference* p, int key, const void* value, size_t bytes) {
    return set(p->set, PREFERENCE_SIZES, key, value, bytes);
}

API cublasLtMatmulAlgoGetHeuristic(void*, Descriptor* descriptor, Layout* layout, Layout*, Layout*, Layout*,
                                   Preference* preference, int asked, Heuristic* found, int* count) {
    // The real library may lack fused GELU in f32 and for 8-bit floats: refused here, to test the
    // fallback.
    int epilogue = get<int>(descriptor->set, EPILOGUE, DEFAULT);
    bool fp8 = is_fp8(layout->type);
    if ((fp8 || layout->type == F32) && (epilogue == GELU_AUX_BIAS || epilogue == DGELU)) {
        *count = 0;
        return NOT_SUPPORTED;
    }
    // Algorithm of the stand-in: the alignment it was proposed for, its number, and its SMs.
    uint32_t reductions = get<uint32_t>(preference->set, REDUCTIONS, 7);
    *count = 0;
    int sms = get<int>(descriptor->set, SM_COUNT_TARGET, 0);
    for (unsigned place = 0; place < COUNT && *count < asked; place++) {
        unsigned number = sms && place < 2 ? 1 - place : place;
        const Kind& kind = ALGORITHMS[number];
        if (kind.workspace > get<size_t>(preference->set, MAX_WORKSPACE, 0)) continue;
        if (kind.reduction && !(kind.reduction & reductions)) continue;
        Heuristic& one = found[(*count)++] = Heuristic{};
        one.workspace = kind.workspace;
        for (int matrix = 0; matrix < 4; matrix++)
            one.algorithm.data[matrix] = get<uint32_t>(preference->set, ALIGN_A + matrix, 256);
        one.algorithm.data[4] = number;
        one.algorithm.data[5] = sms;
    }
    return OK;
}
API cublasLtMatmulAlgoCheck(void*, Descriptor* descriptor, Layout*, Layout*, Layout*, Layout*,
                            const uint64_t* algorithm, Heuristic* found) {
    if (algorithm[4] >= COUNT) return INVALID_VALUE;
    const Kind& kind = ALGORITHMS[algorithm[4]];
    if ((int)algorithm[5] != get<int>(descriptor->set, SM_COUNT_TARGET, 0)) return NOT_SUPPORTED;
    if (kind.flaw == FAILS_ITS_CHECK) return NOT_SUPPORTED;
    found->workspace = kind.workspace;
    return OK;
}
API cublasLtMatmulAlgoConfigGetAttribute(const uint64_t* algorithm, int key, void* value,
                                         size_t bytes, size_t* written) {
    if (key != CONFIG_REDUCTION || bytes != sizeof(uint32_t)) return INVALID_VALUE;
    memcpy(value, &ALGORITHMS[algorithm[4]].reduction, bytes);
    *written = bytes;
    return OK;
}

API cublasLtMatmul(void*, Descriptor* descriptor, const float* alpha, const void* A, Layout* la,
                   const void* B, Layout* lb, const float* beta, const void* C, Layout* lc, void* D,
                   Layout* ld, const uint64_t* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
    const Attributes& a = descriptor->set;
    bool turn_a = get<int>(a, TRANSA, 0), turn_b = get<int>(a, TRANSB, 0);
    int epilogue = get<int>(a, EPILOGUE, DEFAULT);
    void* bias = (void*)get<uint64_t>(a, BIAS_POINTER, 0);
    void* aux = (void*)get<uint64_t>(a, AUX_POINTER, 0);
    int64_t aux_ld = get<int64_t>(a, AUX_LD, 0);
    int64_t m = ld->rows, n = ld->cols, k = turn_a ? la->rows : la->cols;
    bool shapes = (int64_t)(turn_a ? la->cols : la->rows) == m &&
                  (int64_t)(turn_b ? lb->cols : lb->rows) == k &&
                  (int64_t)(turn_b ? lb->rows : lb->cols) == n && lc->rows == ld->rows && lc->cols == ld->cols;
    bool dims = la->ld >= (int64_t)la->rows && lb->ld >= (int64_t)lb->rows && ld->ld >= m;
    bool fp8 = is_fp8(la->type) && is_fp8(lb->type);
    if (!shapes || !dims || (la->type != lb->type && !fp8) || lc->type != ld->type) return INVALID_VALUE;
    const float* scale_a = (const float*)get<uint64_t>(a, A_SCALE, 0);
    const float* scale_b = (const float*)get<uint64_t>(a, B_SCALE, 0);
    int mode = get<int>(a, A_SCALE_MODE, SCALAR_32F);
    if (fp8) {
        // "To use FP8 kernels": A transposed and B not, sizes and addresses multiples of 16, at most one
        // E5M2.
        bool sixteens = m % 16 == 0 && n % 16 == 0 && k % 16 == 0 && (uint64_t)A % 16 == 0 &&
                        (uint64_t)B % 16 == 0 && (uint64_t)C % 16 == 0 && (uint64_t)D % 16 == 0;
        if (!turn_a || turn_b || !sixteens) return NOT_SUPPORTED;
        if (la->type == E5M2 && lb->type == E5M2) return NOT_SUPPORTED;
        if (descriptor->compute != COMPUTE_F32) return NOT_SUPPORTED;
        if (mode != get<int>(a, B_SCALE_MODE, SCALAR_32F)) return NOT_SUPPORTED;
        if (mode != SCALAR_32F && mode != OUTER_VEC_32F) return NOT_SUPPORTED;
        if (mode == OUTER_VEC_32F && (!scale_a || !scale_b)) return INVALID_VALUE;
        // Status of products with a scale per row that accumulate. The heuristic does not see beta.
        const char* status = getenv("SOFTGPU_FP8_ADD");
        if (mode == OUTER_VEC_32F && *beta != 0 && status) return atoi(status);
    } else if (scale_a || scale_b || mode) {
        return NOT_SUPPORTED;
    }
    const void* matrices[4] = {A, B, C, D};
    for (int i = 0; i < 4; i++)
        if (!algorithm || (uint64_t)matrices[i] % algorithm[i]) return INVALID_VALUE;
    if (algorithm[4] >= COUNT) return INVALID_VALUE;
    int sms = get<int>(a, SM_COUNT_TARGET, 0);
    if (sms < 0 || sms > softgpu::MULTIPROCESSORS || (int)algorithm[5] != sms) return INVALID_VALUE;
    const Kind kind = ALGORITHMS[algorithm[4]];
    if (kind.workspace > workspace_bytes) return INVALID_VALUE;
    if (kind.flaw == FAILS_ITS_CHECK || kind.flaw == FAILS_AT_RUN) return NOT_SUPPORTED;
    bool has_bias = epilogue == BIAS || epilogue == GELU_AUX_BIAS;
    bool has_aux = epilogue == GELU_AUX_BIAS || epilogue == DGELU;
    bool sums = epilogue == BGRADB;
    if (sums && (!bias || (uint64_t)bias % 16)) return INVALID_VALUE;
    int own = fp8 ? BF16 : la->type;
    if (has_bias && (!bias || (uint64_t)bias % 16 || ld->type != own)) return INVALID_VALUE;
    if (has_aux && (!aux || (uint64_t)aux % 16 || aux_ld % 8 || aux_ld < m)) return INVALID_VALUE;
    if (epilogue != DEFAULT && !has_bias && !has_aux && !sums) return NOT_SUPPORTED;
    // Supported dtypes: C is like A and B, or f32.
    if (la->type != F32 && la->type != F16 && la->type != BF16 && !fp8) return NOT_SUPPORTED;
    if (ld->type != own && ld->type != F32) return NOT_SUPPORTED;
    if (fp8 && (sums || has_aux)) return NOT_SUPPORTED;
    bool rounds = descriptor->compute == COMPUTE_TF32;
    if (rounds && la->type != F32) return NOT_SUPPORTED;

    Layout x = *la, y = *lb, z = *ld;
    float scale = *alpha, keep = *beta;
    bool fast = fp8 && get<int8_t>(a, FAST_ACCUM, 0);
    std::function<void()> work = [=] {
        // An epilogue that is slower than a kernel of its own.
        softgpu_take(stream, kind.time + (sums ? 50 : 0) + (softgpu_is_cold(stream) ? kind.cold : 0));
        memset(workspace, 0xff, kind.workspace);
        float error = 0;
        if (kind.flaw == GIVES_OTHER_BITS) {
            static int runs = 0;
            error = ++runs;
        }
        std::vector<float> left(m * k), right(n * k);
        for (int64_t i = 0; i < m; i++)
            for (int64_t l = 0; l < k; l++)
                left[i * k + l] = load(x.type, A, turn_a ? l + i * x.ld : i + l * x.ld);
        for (int64_t j = 0; j < n; j++)
            for (int64_t l = 0; l < k; l++)
                right[j * k + l] = load(y.type, B, turn_b ? j + l * y.ld : l + j * y.ld);
        if (rounds)
            for (std::vector<float>* operand : {&left, &right})
                for (float& number : *operand) number = tf32(number);
        for (int64_t j = 0; j < n && sums; j++) {
            float sum = 0;
            for (int64_t l = 0; l < k; l++) sum += right[j * k + l];
            store(z.type, bias, j, sum);
        }
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                float sum = (fast ? fast_dot : kind.dot)(&left[i * k], &right[j * k], k, error);
                sum *= scale;
                if (fp8 && scale_a) sum *= scale_a[mode == OUTER_VEC_32F ? i : 0];
                if (fp8 && scale_b) sum *= scale_b[mode == OUTER_VEC_32F ? j : 0];
                if (keep != 0) sum += keep * load(z.type, C, i + j * z.ld);
                if (has_bias) sum += load(z.type, bias, i);
                if (epilogue == DGELU) sum *= gelu_slope(load(z.type, aux, i + j * aux_ld));
                if (epilogue == GELU_AUX_BIAS) {
                    store(z.type, aux, i + j * aux_ld, sum);
                    sum = gelu(sum);
                }
                store(z.type, D, i + j * z.ld, sum);
            }
    };
    softgpu_push(stream, &work);
    return OK;
}
