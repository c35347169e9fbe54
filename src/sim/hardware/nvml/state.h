/* The state that one virtual machine's NVML library reads: the file `nvml.state` beside the library, mapped shared.
 * `layout.rs` writes the same layout; the assertions below and its test hold the two together. */
#ifndef VIRTUAL_NVML_STATE_H
#define VIRTUAL_NVML_STATE_H

#include <stddef.h>
#include <stdint.h>

#define STATE_MAGIC 0x4d564e42u /* "BNVM" */
#define STATE_VERSION 2u
#define MAX_DEVICES 16u
#define MAX_LINKS 18u
#define MAX_MIG 8u
#define MAX_EVENTS 64u
#define MAX_COUNTERS 128u

struct state_event {
    uint64_t type, data;
    uint32_t device, gpu_instance, compute_instance, pad;
};

struct state_link {
    uint32_t active, remote_type, domain, bus_device; /* bus << 8 | device */
};

struct state_mig {
    char uuid[96];
    uint32_t gpu_instance, compute_instance, gpu_slices, compute_slices;
    uint64_t memory_mb;
    char profile[40];
};

struct state_device {
    uint32_t present, lost, wedged, minor;
    uint32_t domain, bus, device, pci_id;
    char uuid[96];
    char name[96];
    uint64_t memory_bytes;
    uint32_t memory_supported, cc_major, cc_minor, mig_mode, mig_count, event_types, recovery, recovery_supported,
        link_count, fault; /* fault: nvmlReturn_t that every call on the device answers, 0 = none */
    uint64_t ecc_double;
    char serial[32];
    struct state_link links[MAX_LINKS];
    uint32_t fabric_state, fabric_status; /* nvmlGpuFabricState_t; status counts once the state is completed */
    uint8_t pad[32];
    struct state_mig mig[MAX_MIG];
    char failing[56]; /* the function that answers failing_answer for this device; empty = none */
    uint32_t failing_answer;
    uint8_t rest[68];
};

struct state_counter {
    char name[56];
    uint64_t count;
};

struct state {
    uint32_t magic, version, init_error, devices;
    uint64_t event_head; /* events ever written; event k is in slot k % MAX_EVENTS */
    uint32_t call_error, events_unsupported;
    char driver_version[80];
    char nvml_version[80];
    uint32_t cuda_version, wedge_init;
    uint8_t pad[56];
    struct state_event events[MAX_EVENTS];
    uint32_t levels[MAX_DEVICES][MAX_DEVICES];
    uint8_t rest[768];
    struct state_device device[MAX_DEVICES];
    struct state_counter counters[MAX_COUNTERS];
};

_Static_assert(sizeof(struct state_event) == 32, "event");
_Static_assert(sizeof(struct state_link) == 16, "link");
_Static_assert(sizeof(struct state_mig) == 160, "mig");
_Static_assert(sizeof(struct state_device) == 2048, "device");
_Static_assert(offsetof(struct state_device, memory_bytes) == 224, "device.memory_bytes");
_Static_assert(offsetof(struct state_device, ecc_double) == 272, "device.ecc_double");
_Static_assert(offsetof(struct state_device, links) == 312, "device.links");
_Static_assert(offsetof(struct state_device, fabric_state) == 600, "device.fabric_state");
_Static_assert(offsetof(struct state_device, mig) == 640, "device.mig");
_Static_assert(offsetof(struct state_device, failing) == 1920, "device.failing");
_Static_assert(offsetof(struct state_device, failing_answer) == 1976, "device.failing_answer");
_Static_assert(offsetof(struct state, driver_version) == 32, "driver_version");
_Static_assert(offsetof(struct state, cuda_version) == 192, "cuda_version");
_Static_assert(offsetof(struct state, events) == 256, "events");
_Static_assert(offsetof(struct state, levels) == 2304, "levels");
_Static_assert(offsetof(struct state, device) == 4096, "device[]");
_Static_assert(offsetof(struct state, counters) == 36864, "counters");
_Static_assert(sizeof(struct state) == 45056, "state");

/* NVML's types, as its ABI has them. */
typedef unsigned int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_UNKNOWN = 999
};

/* A handle: which device of the state, and which MIG instance of it (-1 = the whole GPU). */
struct handle {
    uint32_t device;
    int32_t mig;
    char mig_uuid[96]; /* a handle to an instance that was destroyed must not reach its successor */
};
typedef struct handle *nvmlDevice_t;

/* state.c */
extern struct state *nvml_state;
const char *state_path(void);
void state_count(const char *function);
nvmlReturn_t state_library(const char *function);
nvmlReturn_t state_device(const char *function, nvmlDevice_t handle, struct state_device **device);
nvmlReturn_t state_mig(nvmlDevice_t handle, struct state_mig **mig);
nvmlReturn_t state_by_position(unsigned int index, nvmlDevice_t *handle);
nvmlReturn_t state_by_slot(uint32_t slot, nvmlDevice_t *handle);
nvmlReturn_t state_mig_handle(uint32_t slot, uint32_t at, nvmlDevice_t *handle);
unsigned int state_visible(void);
int state_position(uint32_t slot);
nvmlReturn_t state_copy(char *to, unsigned int length, const char *from);

#define EXPORT __attribute__((visibility("default")))
#define LIBRARY()                                                                                                      \
    do {                                                                                                               \
        nvmlReturn_t ret = state_library(__func__);                                                                    \
        if (ret) return ret;                                                                                           \
    } while (0)
#define DEVICE(handle, device)                                                                                         \
    struct state_device *device;                                                                                       \
    do {                                                                                                               \
        nvmlReturn_t ret = state_device(__func__, handle, &device);                                                    \
        if (ret) return ret;                                                                                           \
    } while (0)

#endif
