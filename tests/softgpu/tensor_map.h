// What the stand-in writes into the 128 bytes of a tensor map: cuTensorMapEncodeTiled does, TMA reads.
#pragma once
#include <cstdint>

namespace softgpu {
struct Map {
    static constexpr uint64_t MAGIC = 0x70616d726f736e65;
    uint64_t magic;
    uint64_t address;
    uint32_t sizes[4];
    uint64_t strides[3]; // in bytes, of all but the first dimension
    uint32_t box[4];
    uint32_t swizzle; // bytes: 0, 32, 64, 128
    uint32_t element; // bytes
};
static_assert(sizeof(Map) <= 128);
} // namespace softgpu
