/* Multi-instance GPUs. */
#include "state.h"

#include <string.h>

typedef struct {
    unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

enum { MODE_UNSUPPORTED = 0, MODE_DISABLED = 1, MODE_ENABLED = 2 };

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending) {
    DEVICE(handle, device);
    if (device->mig_mode == MODE_UNSUPPORTED) return NVML_ERROR_NOT_SUPPORTED;
    *current = device->mig_mode == MODE_ENABLED;
    *pending = *current;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count) {
    DEVICE(handle, device);
    *count = device->mig_mode == MODE_UNSUPPORTED ? 0 : MAX_MIG - 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index, nvmlDevice_t *mig) {
    DEVICE(handle, device);
    if (device->mig_mode != MODE_ENABLED) return NVML_ERROR_NOT_SUPPORTED;
    if (index >= MAX_MIG) return NVML_ERROR_INVALID_ARGUMENT;
    /* A destroyed instance leaves its number free; the others keep theirs. */
    if (index >= device->mig_count || !device->mig[index].uuid[0]) return NVML_ERROR_NOT_FOUND;
    return state_mig_handle(handle->device, index, mig);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *parent) {
    DEVICE(mig, device);
    (void)device;
    if (mig->mig < 0) return NVML_ERROR_INVALID_ARGUMENT;
    return state_by_slot(mig->device, parent);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is) {
    DEVICE(handle, device);
    (void)device;
    *is = handle->mig >= 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t instance(nvmlDevice_t handle, struct state_mig **mig) {
    nvmlReturn_t ret = state_mig(handle, mig);
    return ret ? ret : (*mig ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id) {
    DEVICE(handle, device);
    (void)device;
    struct state_mig *mig;
    nvmlReturn_t ret = instance(handle, &mig);
    if (ret == NVML_SUCCESS) *id = mig->gpu_instance;
    return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id) {
    DEVICE(handle, device);
    (void)device;
    struct state_mig *mig;
    nvmlReturn_t ret = instance(handle, &mig);
    if (ret == NVML_SUCCESS) *id = mig->compute_instance;
    return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes) {
    DEVICE(handle, device);
    (void)device;
    struct state_mig *mig;
    nvmlReturn_t ret = instance(handle, &mig);
    if (ret) return ret;
    memset(attributes, 0, sizeof(*attributes));
    attributes->multiprocessorCount = mig->compute_slices * 16;
    attributes->gpuInstanceSliceCount = mig->gpu_slices;
    attributes->computeInstanceSliceCount = mig->compute_slices;
    attributes->memorySizeMB = mig->memory_mb;
    return NVML_SUCCESS;
}
