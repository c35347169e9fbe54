/* Events. The writer of the state file wakes a waiter through inotify: nothing polls. */
#define _GNU_SOURCE
#include "state.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#define EVENT_XID 8u

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct event_set {
    int wake;
    uint64_t next; /* the next event to look at */
    unsigned long long mask[MAX_DEVICES];
} *nvmlEventSet_t;

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    LIBRARY();
    if (nvml_state->events_unsupported == 5) return NVML_ERROR_UNKNOWN;
    struct event_set *made = calloc(1, sizeof(*made));
    if (!made) return NVML_ERROR_UNKNOWN;
    made->wake = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (made->wake < 0 || inotify_add_watch(made->wake, state_path(), IN_MODIFY) < 0) {
        if (made->wake >= 0) close(made->wake);
        free(made);
        return NVML_ERROR_UNKNOWN;
    }
    made->next = __atomic_load_n(&nvml_state->event_head, __ATOMIC_ACQUIRE);
    *set = made;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    LIBRARY();
    close(set->wake);
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types) {
    DEVICE(handle, device);
    if (nvml_state->events_unsupported == 1) return NVML_ERROR_NOT_SUPPORTED;
    *types = device->event_types;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
    DEVICE(handle, device);
    if (nvml_state->events_unsupported == 1 || device->event_types == 0) return NVML_ERROR_NOT_SUPPORTED;
    if (types & ~(unsigned long long)device->event_types) return NVML_ERROR_NOT_SUPPORTED;
    if (handle->mig >= 0) return NVML_ERROR_INVALID_ARGUMENT;
    set->mask[handle->device] |= types;
    return NVML_SUCCESS;
}

/* As NVML documents it: events that were not fetched in time all carry the XID that the system saw last. */
static uint64_t last_xid(uint64_t head, uint64_t fallback) {
    uint64_t oldest = head > MAX_EVENTS ? head - MAX_EVENTS : 0;
    for (uint64_t at = head; at > oldest; at--) {
        const struct state_event *event = &nvml_state->events[(at - 1) % MAX_EVENTS];
        if (event->type == EVENT_XID) return event->data;
    }
    return fallback;
}

static int take(nvmlEventSet_t set, nvmlEventData_t *data) {
    uint64_t head = __atomic_load_n(&nvml_state->event_head, __ATOMIC_ACQUIRE);
    if (head - set->next > MAX_EVENTS) set->next = head - MAX_EVENTS;
    while (set->next < head) {
        const struct state_event *event = &nvml_state->events[set->next++ % MAX_EVENTS];
        if (event->device >= nvml_state->devices || !(set->mask[event->device] & event->type)) continue;
        state_by_slot(event->device, &data->device);
        data->eventType = event->type;
        data->eventData = event->type == EVENT_XID ? last_xid(head, event->data) : event->data;
        data->gpuInstanceId = event->gpu_instance;
        data->computeInstanceId = event->compute_instance;
        return 1;
    }
    return 0;
}

static int64_t now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    LIBRARY();
    /* As mock libraries do: one that has no events although it lets them be asked for, and one that does not wait. */
    if (nvml_state->events_unsupported == 2) return NVML_ERROR_NOT_SUPPORTED;
    int64_t until = now_ms() + (nvml_state->events_unsupported == 3 ? 0 : timeout_ms);
    for (;;) {
        if (nvml_state->call_error) return nvml_state->call_error;
        if (take(set, data)) return NVML_SUCCESS;
        /* While a GPU is lost, NVML says so instead of waiting. */
        if (nvml_state->events_unsupported == 4) return NVML_ERROR_GPU_IS_LOST;
        int64_t left = until - now_ms();
        if (left <= 0) return NVML_ERROR_TIMEOUT;
        struct pollfd wake = {set->wake, POLLIN, 0};
        poll(&wake, 1, (int)left);
        char drained[512];
        while (read(set->wake, drained, sizeof(drained)) > 0) {
        }
    }
}
