/* Preloaded into a server: one call on a file of its log, or on the log's folder, fails. FAULT_FILE has two int32: which
 * call, and how many of these succeed before it fails; the first one becomes 0 when it has failed.
 *
 * 1: open, with EMFILE    2: mmap, with ENOMEM    3: dup, with EMFILE    4: fsync of the folder, with EIO
 * 5: rename, with EIO     6: ftruncate, with EIO  7: pwrite of a header, with ENOSPC
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REAL(name) ({ static __typeof__(name) *found; if (!found) found = (__typeof__(name) *) dlsym(RTLD_NEXT, #name); found; })

static volatile int32_t *fault;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAULT_FILE");
    if (!file) return;
    int fd = REAL(open)(file, O_RDWR | O_CLOEXEC);
    fault = REAL(mmap)(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || fault == MAP_FAILED) abort();
    close(fd);
}

static int is_of_log(const char *path) {
    const char *name = strstr(path, "/log/");
    return name && !strstr(name, "/marks") && !strstr(name, "/running");
}

static int of_log(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return is_of_log(path);
}

static int is_folder(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    return size > 4 && !memcmp(path + size - 4, "/log", 4);
}

static int fails(int kind, int error) {
    if (!fault || fault[0] != kind) return 0;
    if (fault[1] > 0) {
        fault[1]--;
        return 0;
    }
    fault[0] = 0;
    errno = error;
    return 1;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    return is_of_log(path) && fails(1, EMFILE) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    return is_of_log(path) && fails(1, EMFILE) ? -1 : REAL(open64)(path, flags, mode);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t from) {
    return fd >= 0 && of_log(fd) && fails(2, ENOMEM) ? MAP_FAILED : REAL(mmap)(at, size, protection, flags, fd, from);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t from) {
    return fd >= 0 && of_log(fd) && fails(2, ENOMEM) ? MAP_FAILED : REAL(mmap64)(at, size, protection, flags, fd, from);
}

static int duplicate(int fd, int command, long argument) {
    int is_dup = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
    return is_dup && of_log(fd) && fails(3, EMFILE) ? -1 : REAL(fcntl64)(fd, command, argument);
}

int fcntl(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    return duplicate(fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    return duplicate(fd, command, argument);
}

int fsync(int fd) { return is_folder(fd) && fails(4, EIO) ? -1 : REAL(fsync)(fd); }

int rename(const char *from, const char *to) { return is_of_log(from) && fails(5, EIO) ? -1 : REAL(rename)(from, to); }

int ftruncate(int fd, off_t size) { return of_log(fd) && fails(6, EIO) ? -1 : REAL(ftruncate)(fd, size); }

int ftruncate64(int fd, off64_t size) { return of_log(fd) && fails(6, EIO) ? -1 : REAL(ftruncate64)(fd, size); }

int truncate(const char *path, off_t size) { return is_of_log(path) && fails(6, EIO) ? -1 : REAL(truncate)(path, size); }

int truncate64(const char *path, off64_t size) {
    return is_of_log(path) && fails(6, EIO) ? -1 : REAL(truncate64)(path, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return !at && of_log(fd) && fails(7, ENOSPC) ? -1 : REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return !at && of_log(fd) && fails(7, ENOSPC) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
