// What a process gets of a GPU by the driver's own calls, for .ci/real-node; it needs no CUDA headers.
//   cuda devices | alloc MIB | spin SECONDS BLOCKS | fault
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *driver;
static int call(const char *name, void *a, void *b, void *c) {
  int (*function)(void *, void *, void *) = (int (*)(void *, void *, void *))dlsym(driver, name);
  if (!function) printf("%s is missing\n", name), exit(3);
  return function(a, b, c);
}
static void ok(const char *name, void *a, void *b, void *c) {
  const char *word = "unknown";
  int result = call(name, a, b, c);
  if (!result) return;
  call("cuGetErrorName", (void *)(long)result, &word, 0);
  printf("%s: %s\n", name, word);
  exit(2);
}
static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}
// `spin` computes for a few milliseconds, `fault` writes to address 16, which is XID 31.
static const char kernels[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 rounds) {\n.reg .u64 %i, %n;\n.reg .f32 %f;\n.reg .pred %p;\n"
    "ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.f32 %f, 0f3F800000;\nNEXT:\nfma.rn.f32 %f, %f, %f, %f;\nadd.u64 %i, %i, 1;\n"
    "setp.lt.u64 %p, %i, %n;\n@%p bra NEXT;\nsetp.eq.f32 %p, %f, 0f3F800000;\n@%p trap;\nret;\n}\n"
    ".visible .entry fault(.param .u64 rounds) {\n.reg .u64 %a;\nmov.u64 %a, 16;\nst.global.u64 [%a], %a;\nret;\n}\n";
static void launch(void *function, long blocks) { // the same work, in few long blocks or in many short ones
  typedef int kernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  long rounds = 500000000 / blocks;
  void *arguments[] = {&rounds};
  int result = ((kernel *)dlsym(driver, "cuLaunchKernel"))(function, blocks, 1, 1, 256, 1, 1, 0, 0, arguments, 0);
  if (result) printf("cuLaunchKernel: %d\n", result), exit(2);
  ok("cuCtxSynchronize", 0, 0, 0);
}
int main(int count, char **words) {
  const char *what = count > 1 ? words[1] : "devices";
  int devices = 0, device;
  size_t all, left;
  void *context, *module, *function;
  setvbuf(stdout, 0, _IONBF, 0);
  if (!(driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL))) return printf("%s\n", dlerror()), 4;
  ok("cuInit", 0, 0, 0);
  ok("cuDeviceGetCount", &devices, 0, 0);
  for (long at = 0; at < devices; at++) {
    char name[99];
    unsigned char id[16];
    ok("cuDeviceGet", &device, (void *)at, 0);
    ok("cuDeviceGetName", name, (void *)sizeof name, (void *)(long)device);
    ok("cuDeviceGetUuid", id, (void *)(long)device, 0);
    printf("%s GPU-%02x%02x%02x%02x\n", name, id[0], id[1], id[2], id[3]);
  }
  printf("devices: %d\n", devices);
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *handle;
  unsigned long long memory[3]; // all, free, used
  if (!library) return printf("%s\n", dlerror()), 4;
  int (*start)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
  int (*get)(unsigned, void *) = (int (*)(unsigned, void *))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
  int (*has)(void *, void *) = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo");
  if (start() || get(0, &handle) || has(handle, memory)) return printf("NVML fails\n"), 2;
  printf("NVML: %llu MiB\n", memory[0] >> 20);
  if (!strcmp(what, "devices")) return 0;
  ok("cuDeviceGet", &device, 0, 0);
  ok("cuDevicePrimaryCtxRetain", &context, (void *)(long)device, 0);
  ok("cuCtxSetCurrent", context, 0, 0);
  ok("cuMemGetInfo_v2", &left, &all, 0);
  printf("memory: %zu of %zu MiB are free\n", left >> 20, all >> 20);
  if (!strcmp(what, "alloc") && count > 2) {
    long long address;
    ok("cuMemAlloc_v2", &address, (void *)(atol(words[2]) << 20), 0);
    return printf("allocated: %s MiB\n", words[2]), 0;
  }
  ok("cuModuleLoadData", &module, (void *)kernels, 0);
  ok("cuModuleGetFunction", &function, module, (void *)what);
  long blocks = count > 3 ? atol(words[3]) : 1;
  launch(function, blocks); // the first one also has the module loaded
  double begin = now(), end = begin + (count > 2 ? atof(words[2]) : 0);
  int done = 0;
  for (; now() < end; done++) launch(function, blocks);
  return printf("kernels: %.1f a second\n", done / (now() - begin)), 0;
}
