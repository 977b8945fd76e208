// A CUDA driver library for tests without a GPU. Device memory is host memory, and a launch runs the kernel
// immediately. The library has all functions that daq loads; functions that the built-in kernels do not need return
// "not supported". Faults that a GPU might ignore end the process: writes beyond an allocation (detected by guard
// bytes) and barriers that not all threads reach. Shared memory initially contains NaNs, and every other block runs its
// threads in reverse order, so that a missing barrier changes the result. With CUDA_ON_HOST=small in the environment, the
// device has one multiprocessor, little shared memory and no tensor cores. With CUDA_ON_HOST=medium, it has less shared memory.

#include "tensor.h"

#include <chrono>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <utility>
#include <vector>

static const char* variant = getenv("CUDA_ON_HOST");
static const bool is_small = variant != nullptr && strcmp(variant, "small") == 0;
static const bool is_medium = variant != nullptr && strcmp(variant, "medium") == 0;
constexpr size_t SHARED = 227 << 10;
// Shared memory per block.
static const size_t max_shared = is_small ? 48 << 10 : is_medium ? 99 << 10 : SHARED;
constexpr size_t GUARD = 256;
constexpr unsigned char GUARD_BYTE = 0xa5;

Dim threadIdx, blockIdx, blockDim, gridDim;
alignas(16) unsigned char dynamic_shared[SHARED + GUARD];

static void check_guard(const unsigned char* guard, const char* what) {
    for (size_t i = 0; i < GUARD; i++) {
        if (guard[i] != GUARD_BYTE) fail(what);
    }
}

namespace power_spectrum {
#include "power_spectrum.cu"
}
namespace power_of_two {
#include "power_of_two.cu"
#define SHORT_SIZES(CALL) CALL(128) CALL(256) CALL(512) CALL(1024) CALL(2048) CALL(4096) CALL(8192)
#define LONG_SIZES(CALL) CALL(128) CALL(256) CALL(512) CALL(1024)
SHORT_SIZES(SHORT_KERNEL)
LONG_SIZES(LONG_KERNELS)
} // namespace power_of_two
namespace channelize {
#include "channelize.cu"
#define CHANNELIZE_ALL(CRITICAL, OVERSAMPLED)                                            \
    CHANNELIZE_64(CRITICAL, OVERSAMPLED) CHANNELIZE_128(CRITICAL, OVERSAMPLED)           \
    CHANNELIZE_256(CRITICAL, OVERSAMPLED) CHANNELIZE_512(CRITICAL, OVERSAMPLED)          \
    CHANNELIZE_1024(CRITICAL, OVERSAMPLED) CHANNELIZE_2048(CRITICAL, OVERSAMPLED)        \
    CHANNELIZE_4096(CRITICAL, OVERSAMPLED) CHANNELIZE_8192(CRITICAL, OVERSAMPLED)
CHANNELIZE_ALL(CRITICAL_KERNEL, OVERSAMPLED_KERNEL)
} // namespace channelize
namespace correlate {
#include "correlate.cu"
}
namespace correlate_tensor {
#include "correlate_tensor.cu"
}
namespace beamform {
#include "beamform.cu"
}
namespace beamform_tensor {
#include "beamform_tensor.cu"
}
namespace reorder {
#include "reorder.cu"
}
namespace select_frames {
#include "select.cu"
}
namespace stats {
#include "stats.cu"
}
namespace convert {
#include "convert.cu"
}

struct Kernel {
    std::string name;
    void (*call)(void (*)(), void**);
    void (*function)();
};

template <class... A> struct Caller {
    template <size_t... I>
    static void call(void (*function)(A...), void** arguments, std::index_sequence<I...>) {
        function(*(A*)arguments[I]...);
    }
    static void run(void (*function)(), void** arguments) {
        call((void (*)(A...))function, arguments, std::index_sequence_for<A...>());
    }
};

template <class... A> Kernel kernel(const char* name, void (*function)(A...)) {
    return {name, Caller<A...>::run, (void (*)())function};
}

static std::vector<Kernel> kernels() {
    return {
        kernel("convert_straight", convert::convert_straight),
        kernel("convert_straight_int16", convert::convert_straight_int16),
        kernel("convert_tiles", convert::convert_tiles),
        kernel("convert_tiles_int16", convert::convert_tiles_int16),
        kernel("power_spectrum_join", power_spectrum::power_spectrum_join),
        kernel("power_spectrum_means", power_spectrum::power_spectrum_means),
        kernel("power_spectrum_short", power_spectrum::power_spectrum_short),
        kernel("power_spectrum_columns", power_spectrum::power_spectrum_columns),
        kernel("power_spectrum_rows", power_spectrum::power_spectrum_rows),
        kernel("power_spectrum_combine", power_spectrum::power_spectrum_combine),
        kernel("power_spectrum_median", power_spectrum::power_spectrum_median),
#define SHORT_ENTRY(size) kernel("power_spectrum_short_" #size, power_of_two::power_spectrum_short_##size),
#define LONG_ENTRIES(size)                                                               \
    kernel("power_spectrum_columns_" #size, power_of_two::power_spectrum_columns_##size), \
        kernel("power_spectrum_rows_" #size, power_of_two::power_spectrum_rows_##size),
        SHORT_SIZES(SHORT_ENTRY) LONG_SIZES(LONG_ENTRIES)
#define CRITICAL_ENTRY(size, threads, blocks, spectra) \
    kernel("channelize_" #size "_" #threads "x" #spectra, channelize::channelize_##size##_##threads##x##spectra),
#define OVERSAMPLED_ENTRY(size, threads, spectra) \
    kernel("channelize_" #size "_" #threads "x" #spectra "_oversampled",                \
           channelize::channelize_##size##_##threads##x##spectra##_oversampled),
        CHANNELIZE_ALL(CRITICAL_ENTRY, OVERSAMPLED_ENTRY)
        kernel("channelize_history", channelize::channelize_history),
        kernel("correlate_any", correlate::correlate_any),
        kernel("correlate_int8", correlate_tensor::correlate_int8),
        kernel("correlate_float16", correlate_tensor::correlate_float16),
        kernel("beamform_any", beamform::beamform_any),
        kernel("beamform_int8", beamform_tensor::beamform_int8),
        kernel("beamform_float16", beamform_tensor::beamform_float16),
        kernel("reorder_samples", reorder::reorder_samples),
        kernel("select_bytes", select_frames::select_bytes),
        kernel("stats_numbers", stats::stats_numbers),
        kernel("stats_codes", stats::stats_codes),
        kernel("stats_finish", stats::stats_finish),
    };
}

static std::mutex lock;
static std::map<uint64_t, size_t> allocations;

extern "C" {

typedef int Result;
constexpr Result SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500;

Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int* version) { return *version = 12000, SUCCESS; }
Result cuDeviceGet(int* device, int ordinal) { return *device = 0, ordinal == 0 ? SUCCESS : INVALID_DEVICE; }
Result cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
Result cuDeviceGetName(char* name, int bytes, int) { return snprintf(name, bytes, "the host"), SUCCESS; }
Result cuDeviceGetPCIBusId(char* id, int bytes, int) { return snprintf(id, bytes, "0000:00:00.0"), SUCCESS; }
Result cuDeviceGetUuid_v2(char* uuid, int) { return memset(uuid, 0, 16), SUCCESS; }
Result cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = (size_t)1 << 30, SUCCESS; }
Result cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
    case 16: *value = is_small ? 1 : 16; break; // multiprocessors
    case 39: *value = 512; break;               // threads per multiprocessor
    case 75: *value = is_small ? 7 : 8; break;   // compute capability
    case 97: *value = max_shared; break;
    default: *value = 0;
    }
    return SUCCESS;
}
Result cuDeviceCanAccessPeer(int* can_access, int, int) { return *can_access = 0, SUCCESS; }
Result cuDevicePrimaryCtxRetain(void** context, int) { return *context = &allocations, SUCCESS; }
Result cuCtxSetCurrent(void*) { return SUCCESS; }
Result cuCtxSynchronize() { return SUCCESS; }
Result cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = (size_t)1 << 30, SUCCESS; }

Result cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    size_t rounded = (bytes + 63) / 64 * 64;
    auto* memory = (unsigned char*)aligned_alloc(256, (rounded + 2 * GUARD + 255) / 256 * 256);
    if (memory == nullptr) return OUT_OF_MEMORY;
    memset(memory, GUARD_BYTE, GUARD);
    memset(memory + GUARD + bytes, GUARD_BYTE, GUARD);
    *address = (uint64_t)(memory + GUARD);
    std::lock_guard<std::mutex> held(lock);
    allocations[*address] = bytes;
    return SUCCESS;
}
Result cuMemFree_v2(uint64_t address) {
    std::lock_guard<std::mutex> held(lock);
    auto found = allocations.find(address);
    if (found == allocations.end()) return INVALID_VALUE;
    check_guard((unsigned char*)address - GUARD, "a write before an allocation");
    check_guard((unsigned char*)address + found->second, "a write behind an allocation");
    free((unsigned char*)address - GUARD);
    allocations.erase(found);
    return SUCCESS;
}
Result cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) { return memcpy((void*)to, from, bytes), SUCCESS; }
Result cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) { return memcpy(to, (void*)from, bytes), SUCCESS; }
Result cuMemsetD8_v2(uint64_t at, unsigned char byte, size_t bytes) { return memset((void*)at, byte, bytes), SUCCESS; }
Result cuMemsetD8Async(uint64_t at, unsigned char byte, size_t bytes, void*) { return cuMemsetD8_v2(at, byte, bytes); }

Result cuStreamCreate(void** stream, unsigned) { return *stream = &allocations, SUCCESS; }
Result cuStreamDestroy_v2(void*) { return SUCCESS; }
Result cuStreamSynchronize(void*) { return SUCCESS; }

typedef std::chrono::steady_clock::time_point Moment;
Result cuEventCreate(Moment** event, unsigned) { return *event = new Moment(), SUCCESS; }
Result cuEventDestroy_v2(Moment* event) { return delete event, SUCCESS; }
Result cuEventRecord(Moment* event, void*) { return *event = std::chrono::steady_clock::now(), SUCCESS; }
Result cuEventQuery(Moment*) { return SUCCESS; }
Result cuEventElapsedTime(float* milliseconds, Moment* start, Moment* end) {
    *milliseconds = std::chrono::duration<float, std::milli>(*end - *start).count();
    return SUCCESS;
}

Result cuModuleLoadDataEx(void** module, const void*, unsigned, void*, void*) { return *module = &allocations, SUCCESS; }
Result cuModuleUnload(void*) { return SUCCESS; }
Result cuModuleGetFunction(const Kernel** function, void*, const char* name) {
    static const std::vector<Kernel> all = kernels();
    for (const Kernel& kernel : all) {
        if (kernel.name == name) return *function = &kernel, SUCCESS;
    }
    return NOT_FOUND;
}
Result cuFuncGetAttribute(int* value, int, void*) { return *value = 1024, SUCCESS; }
Result cuFuncSetAttribute(void*, int, int) { return SUCCESS; }
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int count, size_t) {
    return *blocks = 512 / count > 0 ? 512 / count : 1, SUCCESS;
}

Result cuLaunchKernel(const Kernel* kernel, unsigned x, unsigned y, unsigned z, unsigned count, unsigned, unsigned,
                      unsigned bytes, void*, void** given, void**) {
    if (x * y * z == 0 || count == 0 || count > 1024 || bytes > max_shared) return INVALID_VALUE;
    // All kernels use the same global state of the emulated device.
    std::lock_guard<std::mutex> held(lock);
    auto run = [&] { kernel->call(kernel->function, given); };
    gridDim = {x, y, z};
    blockDim = {count, 1, 1};
    bool backwards = false;
    for (unsigned k = 0; k < z; k++) {
        for (unsigned j = 0; j < y; j++) {
            for (unsigned i = 0; i < x; i++) {
                blockIdx = {i, j, k};
                memset(dynamic_shared, 0xff, bytes);
                memset(dynamic_shared + bytes, GUARD_BYTE, GUARD);
                run_block(run, [backwards](size_t) { return backwards; });
                check_guard(dynamic_shared + bytes, "a write behind shared memory");
                backwards = !backwards;
            }
        }
    }
    return SUCCESS;
}

Result cuGetErrorName(int, const char** name) { return *name = "an error on the host", SUCCESS; }
Result cuGetErrorString(int, const char** text) { return *text = "", SUCCESS; }

#define UNSUPPORTED(name) \
    Result name() { return 801; }
UNSUPPORTED(cuFlushGPUDirectRDMAWrites)
UNSUPPORTED(cuMemGetAllocationGranularity)
UNSUPPORTED(cuMemCreate)
UNSUPPORTED(cuMemRelease)
UNSUPPORTED(cuMemAddressReserve)
UNSUPPORTED(cuMemAddressFree)
UNSUPPORTED(cuMemMap)
UNSUPPORTED(cuMemUnmap)
UNSUPPORTED(cuMemSetAccess)
UNSUPPORTED(cuMemExportToShareableHandle)
UNSUPPORTED(cuMemGetHandleForAddressRange)
UNSUPPORTED(cuPointerSetAttribute)
UNSUPPORTED(cuImportExternalMemory)
UNSUPPORTED(cuExternalMemoryGetMappedBuffer)
UNSUPPORTED(cuDestroyExternalMemory)
UNSUPPORTED(cuMemHostRegister_v2)
UNSUPPORTED(cuMemHostUnregister)
UNSUPPORTED(cuMemcpyHtoDAsync_v2)
UNSUPPORTED(cuMemcpyDtoHAsync_v2)
UNSUPPORTED(cuMemcpyDtoDAsync_v2)
UNSUPPORTED(cuMemcpy2DAsync_v2)
UNSUPPORTED(cuDeviceGetP2PAttribute)
UNSUPPORTED(cuMemcpy3DAsync_v2)
UNSUPPORTED(cuMemsetD2D8Async)
UNSUPPORTED(cuMemsetD2D32Async)
UNSUPPORTED(cuStreamBeginCapture_v2)
UNSUPPORTED(cuStreamEndCapture)
UNSUPPORTED(cuGraphInstantiateWithFlags)
UNSUPPORTED(cuGraphLaunch)
UNSUPPORTED(cuGraphExecDestroy)
UNSUPPORTED(cuGraphDestroy)
UNSUPPORTED(cuModuleGetGlobal_v2)

} // extern "C"
