/* Questions about the system and about devices. Names, arguments and meanings are NVML's. */
#include "state.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double d;
        unsigned int ui;
        unsigned long long ull;
    } value;
} nvmlFieldValue_t;

#define FIELD_RECOVERY_ACTION 230u
#define VALUE_UNSIGNED_INT 1u
#define MEMORY_BY_V1 2u /* a driver before R510 */

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    LIBRARY();
    return state_copy(version, length, nvml_state->driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    LIBRARY();
    return state_copy(version, length, nvml_state->nvml_version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    LIBRARY();
    *version = (int)nvml_state->cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    LIBRARY();
    *version = (int)nvml_state->cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    LIBRARY();
    *count = state_visible();
    return NVML_SUCCESS;
}

/* Opening a handle touches the GPU: it can hang or find it lost, as the real call does. */
static nvmlReturn_t open_slot(const char *function, uint32_t slot, nvmlDevice_t *handle) {
    nvmlDevice_t found;
    struct state_device *device;
    state_by_slot(slot, &found);
    nvmlReturn_t ret = state_device(function, found, &device);
    if (ret == NVML_SUCCESS) *handle = found;
    return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle) {
    nvmlDevice_t found;
    nvmlReturn_t ret = state_by_position(index, &found);
    if (ret) {
        LIBRARY();
        return ret;
    }
    return open_slot(__func__, found->device, handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle) {
    if (!nvml_state || !uuid || !handle) {
        LIBRARY();
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned int i = 0; i < state_visible(); i++) {
        nvmlDevice_t found;
        state_by_position(i, &found);
        struct state_device *device = &nvml_state->device[found->device];
        if (strcmp(device->uuid, uuid) == 0) return open_slot(__func__, found->device, handle);
        for (uint32_t k = 0; k < device->mig_count && k < MAX_MIG; k++) {
            if (strcmp(device->mig[k].uuid, uuid) == 0) {
                nvmlReturn_t ret = open_slot(__func__, found->device, handle);
                return ret ? ret : state_mig_handle(found->device, k, handle);
            }
        }
    }
    LIBRARY();
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length) {
    DEVICE(handle, device);
    struct state_mig *mig;
    nvmlReturn_t ret = state_mig(handle, &mig);
    return ret ? ret : state_copy(uuid, length, mig ? mig->uuid : device->uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length) {
    DEVICE(handle, device);
    struct state_mig *mig;
    nvmlReturn_t ret = state_mig(handle, &mig);
    if (ret) return ret;
    char text[160];
    snprintf(text, sizeof(text), mig ? "%.95s MIG %.39s" : "%.95s", device->name, mig ? mig->profile : "");
    return state_copy(name, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minor) {
    DEVICE(handle, device);
    if (handle->mig >= 0) return NVML_ERROR_INVALID_ARGUMENT;
    *minor = device->minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index) {
    DEVICE(handle, device);
    (void)device;
    *index = (unsigned int)state_position(handle->device);
    return NVML_SUCCESS;
}

static void fill_pci(nvmlPciInfo_t *pci, uint32_t domain, uint32_t bus, uint32_t device, uint32_t id) {
    memset(pci, 0, sizeof(*pci));
    pci->domain = domain;
    pci->bus = bus;
    pci->device = device;
    pci->pciDeviceId = id;
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, device & 0x1f);
    snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", domain, bus & 0xff, device & 0x1f);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci) {
    DEVICE(handle, device);
    if (!pci || handle->mig >= 0) return NVML_ERROR_INVALID_ARGUMENT;
    fill_pci(pci, device->domain, device->bus, device->device, device->pci_id);
    return NVML_SUCCESS;
}

static nvmlReturn_t total_memory(nvmlDevice_t handle, struct state_device *device, unsigned long long *total) {
    struct state_mig *mig;
    nvmlReturn_t ret = state_mig(handle, &mig);
    if (ret) return ret;
    if (!device->memory_supported) return NVML_ERROR_NOT_SUPPORTED;
    *total = mig ? mig->memory_mb << 20 : device->memory_bytes;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    DEVICE(handle, device);
    nvmlReturn_t ret = total_memory(handle, device, &memory->total);
    if (ret) return ret;
    memory->used = 0;
    memory->free = memory->total;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    DEVICE(handle, device);
    if (device->memory_supported == MEMORY_BY_V1) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t ret = total_memory(handle, device, &memory->total);
    if (ret) return ret;
    memory->reserved = 0;
    memory->used = 0;
    memory->free = memory->total;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
    DEVICE(handle, device);
    *major = (int)device->cc_major;
    *minor = (int)device->cc_minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned int length) {
    DEVICE(handle, device);
    return state_copy(serial, length, device->serial);
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned int *level) {
    DEVICE(a, first);
    struct state_device *second;
    nvmlReturn_t ret = state_device(NULL, b, &second); /* one call, counted once */
    if (ret) return ret;
    (void)first;
    *level = nvml_state->levels[a->device][b->device];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned int kind, unsigned int counter,
                                                unsigned long long *count) {
    DEVICE(handle, device);
    (void)counter;
    *count = kind == 1 ? device->ecc_double : 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t link_of(struct state_device *device, unsigned int link, struct state_link **found) {
    if (device->link_count == 0) return NVML_ERROR_NOT_SUPPORTED;
    if (link >= device->link_count || link >= MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
    *found = &device->links[link];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, unsigned int *active) {
    DEVICE(handle, device);
    struct state_link *found;
    nvmlReturn_t ret = link_of(device, link, &found);
    if (ret == NVML_SUCCESS) *active = found->active;
    return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned int link, unsigned int *type) {
    DEVICE(handle, device);
    struct state_link *found;
    nvmlReturn_t ret = link_of(device, link, &found);
    if (ret == NVML_SUCCESS) *type = found->remote_type;
    return ret;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned int link, nvmlPciInfo_t *pci) {
    DEVICE(handle, device);
    struct state_link *found;
    nvmlReturn_t ret = link_of(device, link, &found);
    if (ret == NVML_SUCCESS) fill_pci(pci, found->domain, found->bus_device >> 8, found->bus_device & 0xff, 0);
    return ret;
}

typedef struct {
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned int cliqueId;
    unsigned char state;
} nvmlGpuFabricInfo_t;

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t handle, nvmlGpuFabricInfo_t *info) {
    DEVICE(handle, device);
    memset(info, 0, sizeof(*info));
    info->state = (unsigned char)device->fabric_state;
    info->status = device->fabric_status;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values) {
    DEVICE(handle, device);
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *value = &values[i];
        value->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        if (value->fieldId == FIELD_RECOVERY_ACTION && device->recovery_supported) {
            value->nvmlReturn = NVML_SUCCESS;
            value->valueType = VALUE_UNSIGNED_INT;
            value->value.ull = 0;
            value->value.ui = device->recovery;
        }
    }
    return NVML_SUCCESS;
}
