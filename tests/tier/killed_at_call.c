/* Preloaded into a process: it kills itself at its KILL_AT-th step below the folder KILL_BELOW.
 *
 * A step is the moment before or after each call that makes, renames, removes or syncs a file or folder there; if KILL_FOR is set, one
 * with that text in its path.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ({ static __typeof__(name) *found; if (!found) found = (__typeof__(name) *) dlsym(RTLD_NEXT, #name); found; })

static const char *below, *only;
static int kill_at;
static atomic_int steps;

__attribute__((constructor)) static void begin(void) {
    below = getenv("KILL_BELOW");
    only = getenv("KILL_FOR");
    kill_at = atoi(getenv("KILL_AT") ?: "-1");
}

static void step(const char *path) {
    if (!below || strncmp(path, below, strlen(below)) || (only && !strstr(path, only))) return;
    if (atomic_fetch_add(&steps, 1) == kill_at) kill(getpid(), SIGKILL);
}

#define STEPPING(name, path, parameters, ...) \
    int name parameters { step(path); int result = REAL(name)(__VA_ARGS__); step(path); return result; }
STEPPING(linkat, to, (int at, const char *from, int to_at, const char *to, int flags), at, from, to_at, to, flags)
STEPPING(rename, to, (const char *from, const char *to), from, to)
STEPPING(unlink, path, (const char *path), path)
STEPPING(mkdir, path, (const char *path, mode_t mode), path, mode)

int fsync(int fd) {
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0) path[0] = 0;
    step(path);
    int result = REAL(fsync)(fd);
    step(path);
    return result;
}
