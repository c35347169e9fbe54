// Which containers have which devices, and from when to when: by their processes, for .ci/real-node.force. Nothing of Baton is asked.
// `sampler ROOT...` walks the pods' cgroups below each root (.../kubepods) every PERIOD_US (5 ms) and writes one line to stdout when
// a container has begun and one when its last process has ended (by a pidfd, at the moment it ends):
//   + <before ns> <seen ns> <pod uid> <container> <name> <share> <devices, with commas, or ->    first process: after `before`, at `seen` at the latest
//   x <ns> <container>            its own program runs (before: the runtime's init, which has the devices already)
//   - <ns> <container>            nothing runs in it
// The name is HOSTNAME, and the share (percent of each device) SHARE of the process's environment: containers without SHARE are left out.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct { char path[512], pod[64], id[80]; long long before, seen; int known, ignored, told, n; } container;
typedef struct { int pid, fd; container *of; } process;
static container *containers[4096];
static process processes[8192];
static struct pollfd polled[8192];
static int n_containers, n_processes;
static long long last;

static long long now(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }
static ssize_t content(const char *path, char *to, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : 0, m;
  while (fd >= 0 && (m = read(fd, to + n, size - 1 - n)) > 0) n += m;
  if (fd >= 0) close(fd);
  if (n >= 0) to[n] = 0;
  return n;
}
static void nodes(int pid, char *out) { // device nodes below the process's own root
  static const struct { const char *dir, *begin; } where[] = {{"dev", "nvidia"}, {"dev/infiniband", "uverbs"}};
  for (int w = 0; w < 2; w++) {
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/root/%s", pid, where[w].dir);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
      size_t n = strlen(where[w].begin);
      if (strncmp(e->d_name, where[w].begin, n) || e->d_name[n] < '0' || e->d_name[n] > '9') continue;
      if (*out) strcat(out, ",");
      strcat(out, e->d_name);
    }
    if (dir) closedir(dir);
  }
}
static void learn(container *c, int pid) { // what the process is, once it is the container's own program
  char path[64], text[65536], *name = NULL, *share = NULL, devices[512] = "";
  snprintf(path, sizeof path, "/proc/%d/comm", pid);
  if (content(path, text, sizeof text) <= 0 || !strncmp(text, "runc", 4)) return;
  struct stat own, its;
  snprintf(path, sizeof path, "/proc/%d/root/", pid);
  if (stat("/", &own) || stat(path, &its) || (own.st_dev == its.st_dev && own.st_ino == its.st_ino)) return; // not in its own root yet
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  ssize_t n = content(path, text, sizeof text);
  if (n <= 0) return;
  long long at = now();
  for (char *p = text; p < text + n; p += strlen(p) + 1) {
    if (!strncmp(p, "HOSTNAME=", 9)) name = p + 9;
    if (!strncmp(p, "SHARE=", 6)) share = p + 6;
  }
  c->known = 1;
  if (!share) { c->ignored = 1; return; }
  nodes(pid, devices);
  c->told = 1;
  printf("+ %lld %lld %s %s %s %s %s\nx %lld %s\n", c->before, c->seen, c->pod, c->id, name ? name : "?", share, *devices ? devices : "-", at, c->id);
  fflush(stdout);
}
static int members(container *c, const char *path) { // all processes of it, those of cgroups below it too
  char file[700], text[65536];
  int found = 0;
  snprintf(file, sizeof file, "%s/cgroup.procs", path);
  if (content(file, text, sizeof text) < 0) return 0;
  for (char *p = text, *end; *p; p = end + 1) {
    int pid = strtol(p, &end, 10), have = 0;
    if (end == p) break;
    if (pid <= 0) continue;
    found++;
    for (int i = 0; i < n_processes && !have; i++) have = processes[i].pid == pid;
    if (!have && n_processes < 8192) {
      int fd = syscall(SYS_pidfd_open, pid, 0);
      if (fd >= 0) { processes[n_processes] = (process){pid, fd, c}; polled[n_processes++] = (struct pollfd){fd, POLLIN, 0}; c->n++; }
    }
    if (!c->seen) c->seen = now(), c->before = last;
    if (!c->known) learn(c, pid);
  }
  DIR *dir = opendir(path);
  for (struct dirent *e; dir && (e = readdir(dir));)
    if (e->d_type == DT_DIR && *e->d_name != '.') { snprintf(file, sizeof file, "%.500s/%.180s", path, e->d_name); found += members(c, file); }
  if (dir) closedir(dir);
  return found;
}
static void ended(container *c, long long at) {
  if (c->told) { printf("- %lld %s\n", at, c->id); fflush(stdout); }
  c->told = c->known = 0, c->seen = 0;
}
static void walk(const char *path, const char *pod) {
  DIR *dir = opendir(path);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    char below[512];
    if (e->d_type != DT_DIR || *e->d_name == '.') continue;
    snprintf(below, sizeof below, "%.300s/%.200s", path, e->d_name);
    if (!pod) { walk(below, strncmp(e->d_name, "pod", 3) ? NULL : e->d_name + 3); continue; }
    container *c = NULL;
    for (int i = 0; i < n_containers && !c; i++) if (!strcmp(containers[i]->id, e->d_name)) c = containers[i];
    if (!c && n_containers < 4096) {
      c = containers[n_containers++] = calloc(1, sizeof *c);
      snprintf(c->path, sizeof c->path, "%s", below), snprintf(c->pod, sizeof c->pod, "%s", pod), snprintf(c->id, sizeof c->id, "%.79s", e->d_name);
    }
    if (c && !c->ignored) members(c, below);
  }
  if (dir) closedir(dir);
}
static void wait_until(long long until) { // ends of processes, at the moment they end
  do {
    long long left = until - now();
    struct timespec rest = {0, left < 0 ? 0 : left};
    if (ppoll(polled, n_processes, &rest, NULL) <= 0) continue;
    long long at = now();
    for (int i = 0; i < n_processes;) {
      container *c = processes[i].of;
      if (!polled[i].revents) { i++; continue; }
      close(processes[i].fd);
      processes[i] = processes[--n_processes], polled[i] = polled[n_processes];
      // What was forked a moment before its end is found in the cgroup.
      if (!--c->n && !members(c, c->path)) ended(c, at);
    }
  } while (now() < until);
}
int main(int argc, char **argv) {
  long long period = (getenv("PERIOD_US") ? atoll(getenv("PERIOD_US")) : 5000) * 1000, longest = 0;
  sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1}); // before whatever else the machine does; without it, longer gaps
  last = now();
  for (;;) {
    long long begin = now();
    for (int i = 1; i < argc; i++) walk(argv[i], NULL);
    // Gone cgroups are forgotten; one whose processes were all too short to be held ends here.
    for (int i = 0; i < n_containers;) {
      container *c = containers[i];
      if (!c->n && c->seen && !members(c, c->path)) ended(c, now());
      if (!c->n && access(c->path, F_OK)) { free(c); containers[i] = containers[--n_containers]; } else i++;
    }
    if (begin - last > longest && longest >= 0) { longest = begin - last; fprintf(stderr, "longest gap: %lld us\n", longest / 1000); }
    last = begin;
    wait_until(begin + period);
  }
}
