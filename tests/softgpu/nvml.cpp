// Part of NVML that gptrain calls: every GPU has the same clock, power and temperature, and the faults
// of SOFTGPU_FAULTS: ecc=N (errors, after the first poll), pending, failed, lost, uncounted (it does not
// count its energy), and xid=N, any number of times. For tests only.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>

#define API extern "C" __attribute__((visibility("default"))) int

// Text behind the nth (from 0) NAME in the variable; null if there is none.
static const char* fault(const char* name, int nth = 0) {
    const char* all = getenv("SOFTGPU_FAULTS");
    for (all = all ? strstr(all, name) : nullptr; all && nth > 0; nth--)
        all = strstr(all + 1, name);
    return all ? all + strlen(name) : nullptr;
}

API nvmlInit_v2() { return 0; }
API nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
    static int one;
    *gpu = &one;
    return strncmp(uuid, "GPU-", 4) == 0 ? 0 : 6; // NVML_ERROR_NOT_FOUND
}
API nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) {
    if (fault("lost")) return 15; // NVML_ERROR_GPU_IS_LOST
    *mhz = 1410;
    return type == 1 ? 0 : 3; // the multiprocessors'; NVML_ERROR_NOT_SUPPORTED
}
API nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
    *milliwatts = 250500;
    return 0;
}
// 250.5 W of the system's time: millijoules.
API nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
    if (fault("uncounted")) return 3; // NVML_ERROR_NOT_SUPPORTED
    std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    *millijoules = (unsigned long long)(now.count() * 250500);
    return 0;
}
API nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
    *celsius = 61;
    return sensor == 0 ? 0 : 3;
}

// nvmlMemory_v2_t and nvmlProcessInfo_v2_t: this process, as a container shows it, under another number.
struct Memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned instances[2];
};
API nvmlDeviceGetMemoryInfo_v2(void*, Memory* memory) {
    if (memory->version != (sizeof(Memory) | 2 << 24)) return 25; // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    memory->reserved = 600ull << 20;
    return 0;
}
API nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* listed) {
    if (*count < 1) return 7; // NVML_ERROR_INSUFFICIENT_SIZE
    *count = 1;
    listed[0] = {1, 3ull << 30, {0, 0}};
    return 0;
}

static std::mutex lock;

API nvmlDeviceGetTotalEccErrors(void*, int type, int counter, unsigned long long* count) {
    std::lock_guard guard(lock);
    static bool looked = false;
    const char* errors = fault("ecc=");
    *count = 5 + (looked && errors ? strtoull(errors, nullptr, 10) : 0);
    looked = true;
    return type == 1 && counter == 0 ? 0 : 3; // uncorrected, since the driver was loaded
}
API nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
    *corrected = *uncorrected = 0;
    *pending = fault("pending") != nullptr;
    *failed = fault("failed") != nullptr;
    return 0;
}

struct Event {
    void* gpu;
    unsigned long long kind, data;
    unsigned instances[2];
};
API nvmlEventSetCreate(void** set) {
    static int one;
    *set = &one;
    return 0;
}
API nvmlDeviceRegisterEvents(void*, unsigned long long kinds, void*) { return kinds == 8 ? 0 : 3; }
API nvmlEventSetWait_v2(void*, Event* event, unsigned timeout) {
    std::lock_guard guard(lock);
    static int told = 0;
    const char* xid = fault("xid=", told);
    if (!xid) return timeout == 0 ? 10 : 3; // NVML_ERROR_TIMEOUT
    told++;
    event->kind = 8;
    event->data = strtoull(xid, nullptr, 10);
    return 0;
}
