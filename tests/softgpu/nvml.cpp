// The part of NVML that gptrain calls: every GPU has the same clock, power and temperature.
// For tests only.
#include <cstring>

#define API extern "C" __attribute__((visibility("default"))) int

API nvmlInit_v2() { return 0; }
API nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
    static int one;
    *gpu = &one;
    return strncmp(uuid, "GPU-", 4) == 0 ? 0 : 6; // NVML_ERROR_NOT_FOUND
}
API nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) {
    *mhz = 1410;
    return type == 1 ? 0 : 3; // the multiprocessors'; NVML_ERROR_NOT_SUPPORTED
}
API nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
    *milliwatts = 250500;
    return 0;
}
API nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
    *celsius = 61;
    return sensor == 0 ? 0 : 3;
}
