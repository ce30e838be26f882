// The part of libcuda that gptrain calls, on the CPU. For tests only.
//
// A stream is a queue of work that nobody runs until somebody waits; then work is taken from the
// streams in a seeded random order (SOFTGPU_SEED) that respects only streams and events, so that a
// missing wait shows as a wrong number. Memory ends at a page that cannot be touched. Each device
// has its own lock, so that ranks may be threads. SOFTGPU_DEVICES, SOFTGPU_MEMORY (bytes) and
// SOFTGPU_CAPABILITY (times ten) set what there is.
#include "softgpu.h"
#include "tensor_map.h"
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

typedef int Result;
typedef uint64_t Address;
enum : Result {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_READY = 600,
};
#define API extern "C" __attribute__((visibility("default"))) Result

namespace {
struct Marker {
    uint64_t recorded = 0, done = 0;
};
struct Work {
    std::function<void()> run;
    // Ready once this marker is done up to this record.
    std::shared_ptr<Marker> needs;
    uint64_t record = 0;
    // Ready once this says so: others are waited for.
    std::function<bool()> when;
};
struct Device;
struct Stream {
    Device* device;
    std::deque<Work> queue;
};
struct Event {
    std::shared_ptr<Marker> marker = std::make_shared<Marker>();
};
struct Function {
    const softgpu::Kernel* kernel;
    unsigned shared_limit;
};

uint64_t setting(const char* name, uint64_t otherwise) {
    const char* value = getenv(name);
    return value ? strtoull(value, nullptr, 10) : otherwise;
}

struct Device {
    std::recursive_mutex lock;
    std::set<Stream*> streams;
    std::mt19937_64 random{setting("SOFTGPU_SEED", 0)};
    std::map<Address, size_t> memory;
    std::set<std::pair<char*, size_t>> pinned;
    size_t used = 0;
    const size_t total = setting("SOFTGPU_MEMORY", 8ull << 30);

    static bool ready(Stream* s) {
        if (s->queue.empty()) return false;
        Work& work = s->queue.front();
        return (!work.needs || work.needs->done >= work.record) && (!work.when || work.when());
    }
    bool others_awaited() {
        for (Stream* s : streams)
            if (!s->queue.empty() && s->queue.front().when) return true;
        return false;
    }

    // Runs work of any stream until `done`.
    template <class Done> void drain(Done done) {
        for (int waited = 0; !done();) {
            std::vector<Stream*> can;
            for (Stream* s : streams)
                if (ready(s)) can.push_back(s);
            if (can.empty() && others_awaited() && waited++ < 1200000) { // a minute
                lock.unlock(); // somebody else's work on this device may be awaited
                usleep(50);
                lock.lock();
                continue;
            }
            if (can.empty()) {
                fprintf(stderr, "softgpu: every stream waits for what nobody does\n");
                abort();
            }
            Stream* s = can[random() % can.size()];
            Work work = std::move(s->queue.front());
            s->queue.pop_front();
            if (work.run) work.run();
        }
    }
    void drain_all() {
        drain([&] {
            for (Stream* s : streams)
                if (!s->queue.empty()) return false;
            return true;
        });
    }
};

unsigned device_count() { return setting("SOFTGPU_DEVICES", 8); }

Device* device(unsigned i) {
    static std::mutex lock;
    static std::map<unsigned, Device*> all;
    std::lock_guard<std::mutex> guard(lock);
    if (!all[i]) all[i] = new Device;
    return all[i];
}

thread_local Device* current = nullptr;

// A page that faults ends every allocation; its start stays aligned to 256 bytes.
constexpr size_t PAGE = 4096;
size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

bool is_pinned(Device* d, const void* p) {
    for (auto& [start, bytes] : d->pinned)
        if (p >= start && p < start + bytes) return true;
    return false;
}
} // namespace

#define IN_CONTEXT                                                                                 \
    if (!current) return INVALID_CONTEXT;                                                          \
    std::lock_guard<std::recursive_mutex> guard(current->lock)

// For the stand-in's other libraries.
extern "C" __attribute__((visibility("default"))) void softgpu_push(Stream* s,
                                                                    std::function<void()>* work) {
    std::lock_guard<std::recursive_mutex> guard(s->device->lock);
    s->queue.push_back({std::move(*work), nullptr, 0, nullptr});
}

extern "C" __attribute__((visibility("default"))) void
softgpu_push_when(Stream* s, std::function<bool()>* when, std::function<void()>* work) {
    std::lock_guard<std::recursive_mutex> guard(s->device->lock);
    s->queue.push_back({std::move(*work), nullptr, 0, std::move(*when)});
}

API cuInit(unsigned) { return OK; }
API cuDriverGetVersion(int* version) {
    *version = setting("SOFTGPU_DRIVER", 13000);
    return OK;
}
API cuGetErrorName(Result e, const char** name) {
    *name = e == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : e == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
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
API cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
    case 16: *value = 4; break;           // multiprocessors
    case 75: *value = setting("SOFTGPU_CAPABILITY", 90) / 10; break;
    case 76: *value = setting("SOFTGPU_CAPABILITY", 90) % 10; break;
    case 97: *value = 227 << 10; break;   // shared memory a block may ask for
    default: return INVALID_VALUE;
    }
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
    if (bytes == 0) return INVALID_VALUE;
    if (current->used + bytes > current->total) return OUT_OF_MEMORY;
    size_t size = pages(bytes);
    void* map = mmap(nullptr, size + PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return OUT_OF_MEMORY;
    char* start = static_cast<char*>(map);
    mprotect(start + size, PAGE, PROT_NONE);
    *address = reinterpret_cast<Address>(start) + ((size - bytes) & ~255ull);
    // Never written is NaN; large regions would cost time.
    if (bytes < 16 << 20) memset(reinterpret_cast<void*>(*address), 0xff, bytes);
    current->memory[*address] = bytes;
    current->used += bytes;
    return OK;
}
API cuMemFree_v2(Address address) {
    IN_CONTEXT;
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
    *memory = static_cast<char*>(aligned_alloc(PAGE, pages(bytes)));
    current->pinned.insert({*memory, bytes});
    return *memory ? OK : OUT_OF_MEMORY;
}
API cuMemFreeHost(char* memory) {
    IN_CONTEXT;
    std::erase_if(current->pinned, [&](auto& p) { return p.first == memory; });
    free(memory);
    return OK;
}
API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* s) {
    IN_CONTEXT;
    if (is_pinned(current, from)) { // read when the copy runs, as a device would
        s->queue.push_back({[=] { memcpy(reinterpret_cast<void*>(to), from, bytes); }, nullptr, 0, nullptr});
        return OK;
    }
    auto bytes_now = std::make_shared<std::string>(static_cast<const char*>(from), bytes);
    s->queue.push_back({[=] { memcpy(reinterpret_cast<void*>(to), bytes_now->data(), bytes); }, nullptr, 0, nullptr});
    return OK;
}
API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* s) {
    IN_CONTEXT;
    s->queue.push_back({[=] { memcpy(to, reinterpret_cast<void*>(from), bytes); }, nullptr, 0, nullptr});
    if (!is_pinned(current, to)) current->drain([=] { return s->queue.empty(); });
    return OK;
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream* s) {
    IN_CONTEXT;
    s->queue.push_back({[=] { memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); }, nullptr, 0, nullptr});
    return OK;
}
API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream* s) {
    IN_CONTEXT;
    s->queue.push_back({[=] {
        // Pages given back read as zeros, and take no memory until they are written.
        Address first = pages(to), last = (to + bytes) / PAGE * PAGE;
        char* start = reinterpret_cast<char*>(to);
        if (value == 0 && last > first) {
            madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
            memset(start, 0, first - to);
            memset(reinterpret_cast<void*>(last), 0, to + bytes - last);
        } else {
            memset(start, value, bytes);
        }
    }, nullptr, 0, nullptr});
    return OK;
}

API cuModuleLoadData(void** module, const void* image) {
    // A fatbin or a cubin: which is not run, but must be one.
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
API cuModuleGetFunction(Function** function, void*, const char* name) {
    const softgpu::Kernel* kernel = softgpu::find(name);
    if (!kernel) return NOT_FOUND;
    *function = new Function{kernel, 48 << 10};
    return OK;
}
API cuFuncSetAttribute(Function* function, int attribute, int value) {
    if (attribute != 8 || value > 227 << 10) return INVALID_VALUE;
    function->shared_limit = value;
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
    if (shared > function->shared_limit) return INVALID_VALUE;
    const softgpu::Kernel* kernel = function->kernel;
    struct alignas(64) Line {
        char bytes[64];
    };
    auto copy = std::make_shared<std::vector<Line>>((kernel->bytes + 63) / 64);
    memcpy(static_cast<void*>(copy->data()), arguments[0], kernel->bytes);
    s->queue.push_back({[=] {
        softgpu::run({{gx, gy, gz}, {bx, by, bz}, shared, kernel->body, copy->data()});
    }, nullptr, 0, nullptr});
    return OK;
}

// cuda.h: types 0 .. (6 and 9 are f16 and bf16), interleave, swizzle 0 none, 1 32, 2 64, 3 128 bytes,
// L2 promotion, fill 0 zeros. Four dimensions of two bytes are all that gptrain asks for.
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

API cuStreamCreate(Stream** s, unsigned) {
    IN_CONTEXT;
    *s = new Stream{current, {}};
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
    s->device->drain([=] { return s->queue.empty(); });
    return OK;
}
API cuStreamWaitEvent(Stream* s, Event* e, unsigned) {
    IN_CONTEXT;
    s->queue.push_back({nullptr, e->marker, e->marker->recorded, nullptr});
    return OK;
}
API cuEventCreate(Event** e, unsigned) {
    *e = new Event;
    return OK;
}
API cuEventDestroy_v2(Event* e) {
    delete e;
    return OK;
}
API cuEventRecord(Event* e, Stream* s) {
    IN_CONTEXT;
    auto marker = e->marker;
    uint64_t record = ++marker->recorded;
    s->queue.push_back({[=] { marker->done = record; }, nullptr, 0, nullptr});
    return OK;
}
API cuEventQuery(Event* e) {
    IN_CONTEXT;
    return e->marker->done >= e->marker->recorded ? OK : NOT_READY;
}
API cuEventSynchronize(Event* e) {
    IN_CONTEXT;
    auto marker = e->marker;
    uint64_t record = marker->recorded;
    current->drain([=] { return marker->done >= record; });
    return OK;
}
