// Part of libcuda that gptrain calls, on the CPU. For tests only.
//
// A stream is a queue of work that runs only when a thread waits. Work is then taken from the streams in
// a seeded random order (SOFTGPU_SEED) that respects only streams and events, so that a missing wait
// shows as a wrong number. Every allocation ends at an inaccessible page. Each device has its own lock,
// so that ranks may be threads.
// SOFTGPU_DEVICES, SOFTGPU_MEMORY (bytes) and SOFTGPU_CAPABILITY (90) describe the devices,
// SOFTGPU_QUEUES the number of hardware queues that streams share (driver.h). A kernel is loaded at its
// first use, which synchronizes its device, as CUDA may do under lazy loading. SOFTGPU_LOADS=apart: a
// load also aborts the process if a receive is in flight on a stream of its own. SOFTGPU_FAIL=GPU:N:CODE
// makes the Nth kernel of a device fail, and the device with it: every later call returns CODE; if CODE
// is 0, the kernel never ends.
#include "driver.h"
#include "tensor_map.h"
#include <sys/mman.h>
#include <utility>

thread_local Device* current = nullptr;

namespace {
struct Function {
    const softgpu::Kernel* kernel;
    unsigned dynamic_limit, shared_limit; // bytes per block: dynamic alone, and in total
};

unsigned capability() { return setting("SOFTGPU_CAPABILITY", 90); }
// Static shared memory that this driver reports for every kernel: that of block_sum, which most have.
// The actual bytes of a block are counted as it runs (fibers.cpp).
constexpr int STATIC_SHARED = 256;
constexpr unsigned SHARED_UNASKED = 48 << 10;
// Maximum shared memory per block, in bytes (CUDA C++ Programming Guide, compute capabilities).
int shared_limit() {
    switch (capability()) {
    case 70: return 96 << 10;
    case 80: case 87: return 163 << 10;
    case 86: case 89: case 120: return 99 << 10;
    default: return 227 << 10;
    }
}
unsigned device_count() { return setting("SOFTGPU_DEVICES", 8); }

Device* device(unsigned i) {
    static std::mutex lock;
    static std::map<unsigned, Device*> all;
    std::lock_guard<std::mutex> guard(lock);
    if (!all[i]) all[i] = new Device(i);
    return all[i];
}

// Every allocation ends at a page that faults; its start is aligned to 256 bytes.
constexpr size_t PAGE = 4096;
// An H100's.
constexpr size_t L2_CACHE = 50 << 20;
size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

bool is_pinned(Device* d, const void* p) {
    for (auto& [start, bytes] : d->pinned)
        if (p >= start && p < start + bytes) return true;
    return false;
}
} // namespace

// Functions for the stand-in's other libraries.
#define FOR_LIBRARIES extern "C" __attribute__((visibility("default"))) void
FOR_LIBRARIES softgpu_push(Stream* s, std::function<void()>* work) {
    std::lock_guard<std::recursive_mutex> guard(s->device->lock);
    push_run(s, std::move(*work));
}
FOR_LIBRARIES softgpu_push_steps(Stream* s, Ask* ask) {
    std::lock_guard<std::recursive_mutex> guard(s->device->lock);
    push(s, std::move(*ask));
}
FOR_LIBRARIES softgpu_tell() { News::all().tell(); }
// Counts device memory that a library allocates; a negative number frees it.
FOR_LIBRARIES softgpu_hold(Device* device, long bytes) {
    std::lock_guard<std::recursive_mutex> guard(device->lock);
    device->used += bytes;
}
// Device of a stream.
extern "C" __attribute__((visibility("default"))) void* softgpu_device(Stream* s) { return s->device; }

// Advances the device's simulated clock, in milliseconds; a kernel takes one.
extern "C" __attribute__((visibility("default"))) void softgpu_take(Stream* s, unsigned time) {
    s->device->clock += time;
}

// Whether the stream has overwritten more than the L2 cache since it was last asked.
extern "C" __attribute__((visibility("default"))) bool softgpu_is_cold(Stream* s) {
    return std::exchange(s->device->cold, false);
}

API cuInit(unsigned) { return OK; }
API cuDriverGetVersion(int* version) {
    *version = setting("SOFTGPU_DRIVER", 13000);
    return OK;
}
API cuGetErrorName(Result e, const char** name) {
    static const std::map<Result, const char*> names = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"},
        {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
        {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
        {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
        {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
        {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
        {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
        {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
        {999, "CUDA_ERROR_UNKNOWN"},
    };
    auto found = names.find(e);
    *name = found == names.end() ? "CUDA_ERROR" : found->second;
    return OK;
}
API cuGetErrorString(Result, const char** text) {
    *text = "an error of the software stand-in";
    return OK;
}
API cuDeviceGetCount(int* count) {
    *count = device_count();
    return OK;
}
API cuDeviceGet(int* d, int ordinal) {
    *d = ordinal;
    return ordinal >= 0 && ordinal < (int)device_count() ? OK : INVALID_DEVICE;
}
API cuDeviceGetName(char* name, int bytes, int) {
    snprintf(name, bytes, "software stand-in (no GPU)");
    return OK;
}
API cuDeviceGetPCIBusId(char* id, int bytes, int d) {
    snprintf(id, bytes, "0000:%02X:00.0", d + 1);
    return OK;
}
API cuDeviceGetUuid_v2(unsigned char* uuid, int d) {
    memset(uuid, 0, 16);
    uuid[15] = d + 1;
    return OK;
}
API cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
    case 16: *value = softgpu::MULTIPROCESSORS; break;
    case 75: *value = capability() / 10; break;
    case 76: *value = capability() % 10; break;
    case 97: *value = shared_limit(); break;
    default: return INVALID_VALUE;
    }
    return OK;
}
// 4 (blocking sync): threads that wait for the device block; events have a flag of their own for that.
API cuDevicePrimaryCtxSetFlags_v2(int d, unsigned flags) {
    if (flags != 0 && flags != 4) return INVALID_VALUE;
    device(d)->flags = flags;
    return OK;
}
API cuDevicePrimaryCtxGetState(int d, unsigned* flags, int* active) {
    *flags = device(d)->flags;
    *active = 1;
    return OK;
}
API cuDevicePrimaryCtxRetain(Device** context, int d) {
    *context = device(d);
    return OK;
}
API cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API cuCtxSetCurrent(Device* context) {
    current = context;
    return OK;
}

API cuMemGetInfo_v2(size_t* available, size_t* total) {
    IN_CONTEXT;
    *total = current->total;
    *available = current->total - current->used;
    return OK;
}
API cuMemAlloc_v2(Address* address, size_t bytes) {
    IN_CONTEXT;
    NOT_WHILE_CAPTURING;
    if (bytes == 0) return INVALID_VALUE;
    if (current->used + bytes > current->total) return OUT_OF_MEMORY;
    size_t size = pages(bytes);
    void* map = mmap(nullptr, size + PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return OUT_OF_MEMORY;
    char* start = static_cast<char*>(map);
    mprotect(start + size, PAGE, PROT_NONE);
    *address = reinterpret_cast<Address>(start) + ((size - bytes) & ~255ull);
    // Fills new memory with NaN, unless the region is so large that this takes time.
    if (bytes < 16 << 20) memset(reinterpret_cast<void*>(*address), 0xff, bytes);
    current->memory[*address] = bytes;
    current->used += bytes;
    return OK;
}
API cuMemFree_v2(Address address) {
    IN_CONTEXT;
    NOT_WHILE_CAPTURING;
    auto found = current->memory.find(address);
    if (found == current->memory.end()) return INVALID_VALUE;
    current->drain_all();
    munmap(reinterpret_cast<void*>(address / PAGE * PAGE), pages(found->second) + PAGE);
    current->used -= found->second;
    current->memory.erase(found);
    return OK;
}
API cuMemHostAlloc(char** memory, size_t bytes, unsigned) {
    IN_CONTEXT;
    NOT_WHILE_CAPTURING;
    *memory = static_cast<char*>(aligned_alloc(PAGE, pages(bytes)));
    current->pinned.insert({*memory, bytes});
    return *memory ? OK : OUT_OF_MEMORY;
}
API cuMemFreeHost(char* memory) {
    IN_CONTEXT;
    NOT_WHILE_CAPTURING;
    current->drain_all();
    std::erase_if(current->pinned, [&](auto& p) { return p.first == memory; });
    free(memory);
    return OK;
}
API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* s) {
    IN_CONTEXT;
    if (is_pinned(current, from)) // read when the copy runs, as a device would
        return push_run(s, [=] { memcpy(reinterpret_cast<void*>(to), from, bytes); });
    if (s->capture) return spoil(s->capture, CAPTURE_UNSUPPORTED);
    auto bytes_now = std::make_shared<std::string>(static_cast<const char*>(from), bytes);
    return push_run(s, [=] { memcpy(reinterpret_cast<void*>(to), bytes_now->data(), bytes); });
}
API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* s) {
    IN_CONTEXT;
    bool pinned = is_pinned(current, to);
    if (!pinned && s->capture) return spoil(s->capture, CAPTURE_UNSUPPORTED);
    Result code = push_run(s, [=] { memcpy(to, reinterpret_cast<void*>(from), bytes); });
    if (!pinned) current->drain([=] { return s->queue.empty(); });
    return code;
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream* s) {
    IN_CONTEXT;
    return push_run(s, [=] { memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
}
API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream* s) {
    IN_CONTEXT;
    return push_run(s, [=] {
        // Pages given back read as zeros, and use no memory until they are written.
        Address first = pages(to), last = (to + bytes) / PAGE * PAGE;
        char* start = reinterpret_cast<char*>(to);
        s->device->cold |= bytes > L2_CACHE;
        if (value == 0 && last > first) {
            madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
            memset(start, 0, first - to);
            memset(reinterpret_cast<void*>(last), 0, to + bytes - last);
        } else {
            memset(start, value, bytes);
        }
    });
}

API cuModuleLoadData(void** module, const void* image) {
    NOT_WHILE_CAPTURING;
    // Accepts only a fatbin or a cubin, which it does not run.
    uint32_t magic;
    memcpy(&magic, image, 4);
    if (magic != 0xba55ed50 && magic != 0x464c457f) return INVALID_IMAGE;
    *module = new char;
    return OK;
}
API cuModuleUnload(char* module) {
    delete module;
    return OK;
}
// Loads a kernel at its first use on a device. CUDA_MODULE_LOADING=EAGER: all were loaded with their
// module.
static void load_lazily(const char* name) {
    const char* loading = getenv("CUDA_MODULE_LOADING");
    if (!current || (loading && !strcmp(loading, "EAGER"))) return;
    std::lock_guard<std::recursive_mutex> guard(current->lock);
    if (!current->loaded.insert(name).second) return;
    const char* apart = getenv("SOFTGPU_LOADS");
    if (apart && !strcmp(apart, "apart") && current->receives_beside()) {
        fprintf(stderr, "softgpu: %s is loaded while a receive is in flight\n", name);
        abort();
    }
    current->drain_all();
}
API cuModuleGetFunction(Function** function, void*, const char* name) {
    const softgpu::Kernel* kernel = softgpu::find(name);
    bool tensor_cores = strstr(name, "_mma_");
    if (!kernel || (tensor_cores && capability() < 80)) return NOT_FOUND;
    *function = new Function{kernel, SHARED_UNASKED - STATIC_SHARED, SHARED_UNASKED};
    load_lazily(name);
    return OK;
}
API cuFuncSetAttribute(Function* function, int attribute, int value) {
    if (attribute != 8 || value > shared_limit() - STATIC_SHARED) return INVALID_VALUE;
    function->dynamic_limit = value;
    function->shared_limit = shared_limit();
    return OK;
}
// Attribute 0: maximum threads per block; 1: static shared memory.
API cuFuncGetAttribute(int* value, int attribute, Function* function) {
    if (attribute != 0 && attribute != 1) return INVALID_VALUE;
    *value = attribute ? STATIC_SHARED : function->kernel->bound;
    return OK;
}
API cuFuncGetParamInfo(Function* function, size_t index, size_t* offset, size_t* bytes) {
    if (index > 0) return INVALID_VALUE;
    *offset = 0;
    *bytes = function->kernel->bytes;
    return OK;
}
API cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, Stream* s, void** arguments, void**) {
    IN_CONTEXT;
    uint64_t threads = (uint64_t)bx * by * bz;
    if (!gx || !gy || !gz || !threads || threads > 1024 || bz > 64) return INVALID_VALUE;
    if (gx > 0x7fffffff || gy > 65535 || gz > 65535) return INVALID_VALUE;
    const softgpu::Kernel* kernel = function->kernel;
    if (shared > function->dynamic_limit || threads > kernel->bound) return INVALID_VALUE;
    if (kernel->bytes > softgpu::ARGUMENT_BYTES) return INVALID_VALUE;
    struct alignas(64) Line {
        char bytes[64];
    };
    auto copy = std::make_shared<std::vector<Line>>((kernel->bytes + 63) / 64);
    memcpy(static_cast<void*>(copy->data()), arguments[0], kernel->bytes);
    Device* device = s->device;
    unsigned limit = function->shared_limit;
    return push(s, [=](bool) -> std::vector<Step> {
        if (const Result* code = device->failure()) {
            std::function<bool()> never = [] { return false; };
            return {{*code ? nullptr : never, [=, code = *code] { device->error = code; }}};
        }
        return {{nullptr, [=] {
            device->clock++;
            softgpu::run({kernel->name, {gx, gy, gz}, {bx, by, bz}, shared, limit, kernel->body, copy->data()});
        }}};
    });
}

// cuda.h: types 0 .. (6 and 9 are f16 and bf16), interleave, swizzle 0 none, 1 32, 2 64, 3 128 bytes, L2
// promotion, fill 0 zeros. gptrain uses only four dimensions of two-byte elements.
API cuTensorMapEncodeTiled(void* map, int type, unsigned rank, Address address, const uint64_t* sizes,
                           const uint64_t* strides, const unsigned* box, const unsigned* steps,
                           int interleave, int swizzle, int promotion, int fill) {
    if (reinterpret_cast<uintptr_t>(map) % 64 || address % 16 || address == 0) return INVALID_VALUE;
    if ((type != 6 && type != 9) || rank != 4 || interleave || fill) return INVALID_VALUE;
    if (swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3) return INVALID_VALUE;
    softgpu::Map ours{};
    ours.magic = softgpu::Map::MAGIC;
    ours.address = address;
    ours.element = 2;
    ours.swizzle = swizzle ? 16 << swizzle : 0;
    for (unsigned i = 0; i < rank; i++) {
        if (sizes[i] == 0 || sizes[i] > 1ull << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1) return INVALID_VALUE;
        ours.sizes[i] = sizes[i];
        ours.box[i] = box[i];
    }
    for (unsigned i = 0; i + 1 < rank; i++) {
        if (strides[i] % 16 || strides[i] >= 1ull << 40) return INVALID_VALUE;
        ours.strides[i] = strides[i];
    }
    uint32_t row = box[0] * ours.element;
    if (row % 16 || (ours.swizzle && row > ours.swizzle)) return INVALID_VALUE;
    memset(map, 0, 128);
    memcpy(map, &ours, sizeof ours);
    return OK;
}

// Priorities as on a GPU: a lower number is more urgent.
constexpr int LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5;

API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    IN_CONTEXT;
    *least = LEAST_PRIORITY;
    *greatest = GREATEST_PRIORITY;
    return OK;
}
API cuStreamCreateWithPriority(Stream** s, unsigned flags, int priority) {
    IN_CONTEXT;
    if (flags > 1 || priority > LEAST_PRIORITY || priority < GREATEST_PRIORITY) return INVALID_VALUE;
    uint64_t hardware = current->streams_made++ % std::max<uint64_t>(hardware_queues(), 1);
    *s = new Stream{current, hardware, priority < LEAST_PRIORITY, {}, nullptr, {}};
    current->streams.insert(*s);
    return OK;
}
API cuStreamDestroy_v2(Stream* s) {
    IN_CONTEXT;
    s->device->drain([=] { return s->queue.empty(); });
    s->device->streams.erase(s);
    delete s;
    return OK;
}
API cuStreamSynchronize(Stream* s) {
    IN_CONTEXT;
    if (s->capture) return spoil(s->capture, CAPTURE_UNSUPPORTED);
    s->device->drain([=] { return s->queue.empty(); });
    return current->error;
}
