/* Preloaded into a server: while FAULT_FILE (one int32) is not 0, writes and syncs of some of its files fail with EIO.
 *
 * 1: syncs of *.log    2: writes of *.log    3: writes and syncs of *.sst and MANIFEST-*
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ({ static __typeof__(name) *found; if (!found) found = (__typeof__(name) *) dlsym(RTLD_NEXT, #name); found; })

static const volatile int32_t *fault;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAULT_FILE");
    if (!file) return;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    fault = mmap(NULL, sizeof *fault, PROT_READ, MAP_SHARED, fd, 0);
    if (fd < 0 || fault == MAP_FAILED) abort();
    close(fd);
}

static int fails(int fd, int is_sync) {
    int how = fault ? *fault : 0;
    if (!how) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 4) return 0;
    path[size] = 0;
    int is_log = !strcmp(path + size - 4, ".log") && strstr(path, "/log/");
    int is_index = !strcmp(path + size - 4, ".sst") || strstr(path, "/MANIFEST-");
    if (!((how == 1 && is_log && is_sync) || (how == 2 && is_log && !is_sync) || (how == 3 && is_index))) return 0;
    errno = EIO;
    return 1;
}

#define FAILING(type, name, is_sync, parameters, ...) type name parameters { return fails(fd, is_sync) ? -1 : REAL(name)(__VA_ARGS__); }
FAILING(ssize_t, write, 0, (int fd, const void *data, size_t size), fd, data, size)
FAILING(ssize_t, writev, 0, (int fd, const struct iovec *parts, int count), fd, parts, count)
FAILING(ssize_t, pwrite, 0, (int fd, const void *data, size_t size, off_t at), fd, data, size, at)
FAILING(ssize_t, pwrite64, 0, (int fd, const void *data, size_t size, off64_t at), fd, data, size, at)
FAILING(ssize_t, pwritev, 0, (int fd, const struct iovec *parts, int count, off_t at), fd, parts, count, at)
FAILING(ssize_t, pwritev64, 0, (int fd, const struct iovec *parts, int count, off64_t at), fd, parts, count, at)
FAILING(int, fsync, 1, (int fd), fd)
FAILING(int, fdatasync, 1, (int fd), fd)
