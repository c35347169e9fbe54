/* Finding, mapping and asking the shared state; handles; what every call has in common. */
#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct state *nvml_state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int references;
/* NVML fixes its list of devices when it starts, and a GPU once seen lost stays lost until it starts again. */
static uint32_t visible[MAX_DEVICES], visible_count, latched_lost[MAX_DEVICES];
static struct handle whole[MAX_DEVICES];
#define MAX_MIG_HANDLES 512
static struct handle mig_handles[MAX_MIG_HANDLES];
static unsigned int mig_handle_count;

const char *state_path(void) {
    static char path[PATH_MAX];
    Dl_info info;
    if (!dladdr((void *)&state_path, &info) || !info.dli_fname) return NULL;
    size_t length = strlen(info.dli_fname);
    if (length + sizeof(".state") > sizeof(path)) return NULL;
    strcpy(path, info.dli_fname);
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "nvml.state");
    return path;
}

static struct state *map(void) {
    const char *path = state_path();
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return NULL;
    struct stat st;
    void *at = MAP_FAILED;
    if (!fstat(fd, &st) && (size_t)st.st_size >= sizeof(struct state))
        at = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return NULL;
    struct state *found = at;
    if (found->magic == STATE_MAGIC && found->version == STATE_VERSION && found->devices <= MAX_DEVICES) return found;
    munmap(at, sizeof(struct state));
    return NULL;
}

static void wait_while(const uint32_t *flag) {
    const struct timespec pause = {0, 2000000};
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE)) nanosleep(&pause, NULL);
}

void state_count(const char *function) {
    if (!nvml_state || !function) return;
    for (unsigned int i = 0; i < MAX_COUNTERS && nvml_state->counters[i].name[0]; i++) {
        if (strcmp(nvml_state->counters[i].name, function) == 0) {
            __atomic_fetch_add(&nvml_state->counters[i].count, 1, __ATOMIC_RELAXED);
            return;
        }
    }
}

static nvmlReturn_t start(const char *function) {
    pthread_mutex_lock(&lock);
    if (!nvml_state) nvml_state = map();
    if (!nvml_state) {
        pthread_mutex_unlock(&lock);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    state_count(function);
    pthread_mutex_unlock(&lock);
    wait_while(&nvml_state->wedge_init);
    pthread_mutex_lock(&lock);
    nvmlReturn_t ret = nvml_state->init_error;
    if (ret == NVML_SUCCESS && references++ == 0) {
        visible_count = 0;
        for (uint32_t i = 0; i < nvml_state->devices; i++)
            if (nvml_state->device[i].present) visible[visible_count++] = i;
        memset(latched_lost, 0, sizeof(latched_lost));
        mig_handle_count = 0;
    }
    pthread_mutex_unlock(&lock);
    return ret;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return start(__func__); }
EXPORT nvmlReturn_t nvmlInit(void) { return start(__func__); }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return start(__func__);
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t ret = references ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (references) {
        state_count(__func__);
        references--;
    }
    pthread_mutex_unlock(&lock);
    return ret;
}

/* Every call that is about the library as a whole. */
nvmlReturn_t state_library(const char *function) {
    if (!references || !nvml_state) return NVML_ERROR_UNINITIALIZED;
    state_count(function);
    return nvml_state->call_error;
}

/* Every call that is about one device: it may hang, be lost, or answer with an injected error. */
nvmlReturn_t state_device(const char *function, nvmlDevice_t handle, struct state_device **device) {
    nvmlReturn_t ret = state_library(function);
    if (ret) return ret;
    if (!handle || handle->device >= nvml_state->devices) return NVML_ERROR_INVALID_ARGUMENT;
    struct state_device *found = &nvml_state->device[handle->device];
    wait_while(&found->wedged);
    if (found->lost || !found->present) latched_lost[handle->device] = 1;
    if (latched_lost[handle->device]) return NVML_ERROR_GPU_IS_LOST;
    if (found->fault) return found->fault;
    if (function && found->failing[0] && strcmp(function, found->failing) == 0) return found->failing_answer;
    *device = found;
    return NVML_SUCCESS;
}

/* The instance of a MIG handle; NULL for a whole GPU; an error when it was destroyed since. */
nvmlReturn_t state_mig(nvmlDevice_t handle, struct state_mig **mig) {
    *mig = NULL;
    if (handle->mig < 0) return NVML_SUCCESS;
    struct state_device *device = &nvml_state->device[handle->device];
    struct state_mig *found = &device->mig[handle->mig];
    if ((uint32_t)handle->mig >= device->mig_count || strcmp(found->uuid, handle->mig_uuid) != 0)
        return NVML_ERROR_NOT_FOUND;
    *mig = found;
    return NVML_SUCCESS;
}

unsigned int state_visible(void) { return visible_count; }

int state_position(uint32_t slot) {
    for (uint32_t i = 0; i < visible_count; i++)
        if (visible[i] == slot) return (int)i;
    return -1;
}

nvmlReturn_t state_by_position(unsigned int index, nvmlDevice_t *handle) {
    if (!handle || index >= visible_count) return NVML_ERROR_INVALID_ARGUMENT;
    return state_by_slot(visible[index], handle);
}

nvmlReturn_t state_by_slot(uint32_t slot, nvmlDevice_t *handle) {
    whole[slot].device = slot;
    whole[slot].mig = -1;
    *handle = &whole[slot];
    return NVML_SUCCESS;
}

nvmlReturn_t state_mig_handle(uint32_t slot, uint32_t at, nvmlDevice_t *handle) {
    struct state_mig *mig = &nvml_state->device[slot].mig[at];
    nvmlReturn_t ret = NVML_ERROR_INSUFFICIENT_SIZE;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < MAX_MIG_HANDLES; i++) {
        struct handle *found = &mig_handles[i];
        if (i == mig_handle_count) {
            mig_handle_count++;
            found->device = slot;
            found->mig = (int32_t)at;
            memcpy(found->mig_uuid, mig->uuid, sizeof(mig->uuid));
        } else if (found->device != slot || found->mig != (int32_t)at || strcmp(found->mig_uuid, mig->uuid) != 0) {
            continue;
        }
        *handle = found;
        ret = NVML_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&lock);
    return ret;
}

nvmlReturn_t state_copy(char *to, unsigned int length, const char *from) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    size_t needed = strlen(from) + 1;
    if (needed > length) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, from, needed);
    return NVML_SUCCESS;
}
