/* Preloaded into a server: writes down what it does to the files below a folder, in the order in which it was done.
 *
 * RECORD_ROOT  the folder, as realpath() names it
 * RECORD_FILE  where each event is appended by one writev(): see loadtest/power/recording.py
 * RECORD_FAULT a file of one int32: 1: syncs of *.log fail with EIO; 2: they do nothing, and say that they did;
 *              3: each sync takes 4 ms more, as on a disk. A second int32: calls wait while it is 1. A third: how many
 *              calls are under way. Who wants to kill the server stops the calls first, and waits until there are none:
 *              a call that was done and is not written down would be missing in the record.
 *
 * An event is written once its call has returned; a sync has one before it begins and one when it has succeeded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 65536
#define REAL(name) ({ static __typeof__(name) *found; if (!found) found = (__typeof__(name) *) dlsym(RTLD_NEXT, #name); found; })

struct event { uint32_t size; uint32_t type; uint64_t file; int64_t first; int64_t second; };

static char root[PATH_MAX];
static size_t root_length;
static int record = -1;
static atomic_int has_begun;
static _Atomic uint64_t files[FDS];  /* 0: not ours */
static _Atomic uint64_t next_file;
static struct { volatile int32_t fault; _Atomic int32_t stopped, under_way; } *shared;

__attribute__((constructor)) static void begin(void) {
    if (atomic_exchange(&has_begun, 1)) return;
    const char *folder = getenv("RECORD_ROOT"), *to = getenv("RECORD_FILE"), *faults = getenv("RECORD_FAULT");
    if (!folder || !to) return;
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
    int fd = REAL(open)(to, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (fd < 0) abort();
    record = fcntl(fd, F_DUPFD_CLOEXEC, 900);
    REAL(close)(fd);
    if (faults) {
        fd = REAL(open)(faults, O_RDWR);
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        REAL(close)(fd);
        if (shared == MAP_FAILED) abort();
    }
}

/* A call that changes files is under way from here to the end of its function; calls do not stand in one another. */
static int enter(int is_ours) {
    if (!is_ours || !shared) return 0;
    while (atomic_fetch_add(&shared->under_way, 1), atomic_load(&shared->stopped)) {
        atomic_fetch_sub(&shared->under_way, 1);
        usleep(200);
    }
    return 1;
}
static void leave(const int *has_entered) { if (*has_entered) atomic_fetch_sub(&shared->under_way, 1); }
#define CALL(is_ours) __attribute__((cleanup(leave))) int has_entered = enter((is_ours) != 0)

static void note(char type, uint64_t file, int64_t first, int64_t second, const struct iovec *data, int count, size_t size) {
    struct iovec parts[1 + 64];
    struct event event = {0, (uint32_t) type, file, first, second};
    int kept = errno, n = 1;
    size_t left = size;
    for (int i = 0; i < count && left; i++) {
        if (n > 64) abort();
        parts[n] = data[i];
        if (parts[n].iov_len > left) parts[n].iov_len = left;
        left -= parts[n++].iov_len;
    }
    event.size = sizeof event + size;
    parts[0] = (struct iovec) {&event, sizeof event};
    if (REAL(writev)(record, parts, n) != (ssize_t) event.size) abort();
    errno = kept;
}

static void note_paths(char type, uint64_t file, int64_t first, const char *one, const char *other) {
    struct iovec parts[] = {{(void *) one, strlen(one)}, {"\n", 1}, {(void *) other, strlen(other)}};
    note(type, file, first, 0, parts, 3, strlen(one) + 1 + strlen(other));
}

/* The path below the folder ("" is the folder itself), or NULL if it is elsewhere. */
static const char *ours(int at, const char *path, char *buffer) {
    if (record < 0 || !path) return NULL;
    int kept = errno;
    char from[PATH_MAX] = "";
    if (path[0] != '/') {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t n = at == AT_FDCWD ? readlink("/proc/self/cwd", from, sizeof from - 2) : readlink(link, from, sizeof from - 2);
        if (n < 0) n = 0;
        from[n] = '/';
        from[n + 1] = 0;
    }
    while (!strncmp(path, "./", 2)) path += 2;
    if (!strcmp(path, ".")) path = "";
    if (snprintf(buffer, PATH_MAX, "%s%s", from, path) >= PATH_MAX) { errno = kept; return NULL; }
    size_t length = 0;
    for (char *c = buffer; *c; c++)  /* no doubled slashes */
        if (!(*c == '/' && length && buffer[length - 1] == '/')) buffer[length++] = *c;
    while (length > 1 && buffer[length - 1] == '/') length--;
    buffer[length] = 0;
    errno = kept;
    if (strncmp(buffer, root, root_length) || (buffer[root_length] && buffer[root_length] != '/')) return NULL;
    return buffer[root_length] ? buffer + root_length + 1 : buffer + root_length;
}

static uint64_t file_of(int fd) { return record >= 0 && fd >= 0 && fd < FDS ? files[fd] : 0; }

static void opened(int fd, int at, const char *path, int flags) {
    char buffer[PATH_MAX];
    if (fd < 0 || fd >= FDS) return;
    files[fd] = 0;
    const char *name = ours(at, path, buffer);
    if (!name) return;
    files[fd] = ((uint64_t) getpid() << 32) | ++next_file;
    note_paths('o', files[fd], flags, name, "");
}

#define MODE(flags) ({ mode_t m = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list l; va_start(l, flags); m = va_arg(l, mode_t); va_end(l); } m; })
#define IN(at, path) ours(at, path, (char [PATH_MAX]) {0})
#define OPEN(name) int name(const char *path, int flags, ...) { mode_t mode = MODE(flags); begin(); CALL(IN(AT_FDCWD, path)); int fd = REAL(name)(path, flags, mode); opened(fd, AT_FDCWD, path, flags); return fd; }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { mode_t mode = MODE(flags); begin(); CALL(IN(at, path)); int fd = REAL(name)(at, path, flags, mode); opened(fd, at, path, flags); return fd; }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int at, const char *path, int flags) { return openat(at, path, flags); }
int __openat64_2(int at, const char *path, int flags) { return openat64(at, path, flags); }
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd) {
    if (fd >= 0 && fd == record) { errno = EBADF; return -1; }  /* of programs that close all that they do not know */
    uint64_t file = file_of(fd);
    CALL(file);
    if (file) { files[fd] = 0; note('c', file, 0, 0, NULL, 0, 0); }
    return REAL(close)(fd);
}
int dup(int fd) { int to = REAL(dup)(fd); if (to >= 0 && to < FDS) files[to] = file_of(fd); return to; }
int dup2(int fd, int to) { int done = REAL(dup2)(fd, to); if (done >= 0 && done < FDS) files[done] = file_of(fd); return done; }
int dup3(int fd, int to, int flags) { int done = REAL(dup3)(fd, to, flags); if (done >= 0 && done < FDS) files[done] = file_of(fd); return done; }
static int duplicated(int fd, int command, int done) {
    if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && done >= 0 && done < FDS) files[done] = file_of(fd);
    return done;
}
int fcntl(int fd, int command, ...) {
    va_list list; va_start(list, command); void *argument = va_arg(list, void *); va_end(list);
    return duplicated(fd, command, REAL(fcntl)(fd, command, argument));
}
int fcntl64(int fd, int command, ...) {
    va_list list; va_start(list, command); void *argument = va_arg(list, void *); va_end(list);
    return duplicated(fd, command, REAL(fcntl64)(fd, command, argument));
}

/* --- what is written */

static ssize_t wrote(int fd, const struct iovec *parts, int count, int64_t at, ssize_t done) {
    uint64_t file = file_of(fd);
    if (!file || done <= 0) return done;
    if (at < 0) {
        int kept = errno;
        at = lseek(fd, 0, SEEK_CUR) - done;
        errno = kept;
        if (at < 0) { files[fd] = 0; return done; }  /* a socket by now: closedir() closes a copy of a folder's descriptor unseen */
    }
    note('w', file, at, 0, parts, count, done);
    return done;
}
#define ONE(data, size) (&(struct iovec) {(void *) (data), (size)}), 1
ssize_t write(int fd, const void *data, size_t size) { begin(); CALL(file_of(fd)); return wrote(fd, ONE(data, size), -1, REAL(write)(fd, data, size)); }
ssize_t writev(int fd, const struct iovec *parts, int count) { begin(); CALL(file_of(fd)); return wrote(fd, parts, count, -1, REAL(writev)(fd, parts, count)); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { CALL(file_of(fd)); return wrote(fd, ONE(data, size), at, REAL(pwrite)(fd, data, size, at)); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { CALL(file_of(fd)); return wrote(fd, ONE(data, size), at, REAL(pwrite64)(fd, data, size, at)); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { CALL(file_of(fd)); return wrote(fd, parts, count, at, REAL(pwritev)(fd, parts, count, at)); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { CALL(file_of(fd)); return wrote(fd, parts, count, at, REAL(pwritev64)(fd, parts, count, at)); }
/* The kernel's copying has no bytes to write down, so callers are made to do without. */
ssize_t sendfile(int to, int from, off_t *at, size_t size) { if (file_of(to)) { errno = EINVAL; return -1; } return REAL(sendfile)(to, from, at, size); }
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) { if (file_of(to)) { errno = EINVAL; return -1; } return REAL(sendfile64)(to, from, at, size); }
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags) {
    if (file_of(to)) { errno = EXDEV; return -1; }
    return REAL(copy_file_range)(from, a, to, b, size, flags);
}

static int sized(int fd, int64_t size, int done) { if (file_of(fd) && !done) note('t', file_of(fd), size, 0, NULL, 0, 0); return done; }
int ftruncate(int fd, off_t size) { CALL(file_of(fd)); return sized(fd, size, REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { CALL(file_of(fd)); return sized(fd, size, REAL(ftruncate64)(fd, size)); }
static int path_sized(const char *path, int64_t size, int done) {
    char buffer[PATH_MAX];
    const char *name = ours(AT_FDCWD, path, buffer);
    if (name && !done) note_paths('T', 0, size, name, "");
    return done;
}
int truncate(const char *path, off_t size) { CALL(IN(AT_FDCWD, path)); return path_sized(path, size, REAL(truncate)(path, size)); }
int truncate64(const char *path, off64_t size) { CALL(IN(AT_FDCWD, path)); return path_sized(path, size, REAL(truncate64)(path, size)); }
static int grown(int fd, int mode, int64_t end, int failed) { if (file_of(fd) && !failed) note('f', file_of(fd), end, mode, NULL, 0, 0); return failed; }
int posix_fallocate(int fd, off_t at, off_t size) { CALL(file_of(fd)); return grown(fd, 0, at + size, REAL(posix_fallocate)(fd, at, size)); }
int posix_fallocate64(int fd, off64_t at, off64_t size) { CALL(file_of(fd)); return grown(fd, 0, at + size, REAL(posix_fallocate64)(fd, at, size)); }
int fallocate(int fd, int mode, off_t at, off_t size) { CALL(file_of(fd)); return grown(fd, mode, at + size, REAL(fallocate)(fd, mode, at, size)); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) { CALL(file_of(fd)); return grown(fd, mode, at + size, REAL(fallocate64)(fd, mode, at, size)); }

/* A store into a shared mapping would not be seen: that there is one is written down, and ends the test. */
static void *mapped(void *found, int protection, int flags, int fd) {
    if (found != MAP_FAILED && (protection & PROT_WRITE) && (flags & MAP_SHARED) && !(flags & MAP_ANONYMOUS) && file_of(fd))
        note('M', file_of(fd), 0, 0, NULL, 0, 0);
    return found;
}
void *mmap(void *to, size_t size, int protection, int flags, int fd, off_t at) { return mapped(REAL(mmap)(to, size, protection, flags, fd, at), protection, flags, fd); }
void *mmap64(void *to, size_t size, int protection, int flags, int fd, off64_t at) { return mapped(REAL(mmap64)(to, size, protection, flags, fd, at), protection, flags, fd); }

/* --- syncs */

static _Atomic int64_t next_sync;
static int is_log(int fd) {  /* by the name that the file has now */
    char link[64], name[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name);
    return length > 4 && !memcmp(name + length - 4, ".log", 4);
}
static int synced(int fd, int (*sync)(int)) {
    uint64_t file = file_of(fd);
    if (!file) return sync(fd);
    int how = shared ? shared->fault : 0;
    if (how == 2 && is_log(fd)) return 0;
    if (how == 1 && is_log(fd)) { errno = EIO; return -1; }
    int64_t number = ((int64_t) getpid() << 32) | ++next_sync;
    note('b', file, number, 0, NULL, 0, 0);
    if (how == 3) usleep(4000);
    int failed = sync(fd);
    if (!failed) note('e', file, number, 0, NULL, 0, 0);
    return failed;
}
int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

/* --- names */

static int named(char type, int at, const char *path, int done) {
    char buffer[PATH_MAX];
    const char *name = ours(at, path, buffer);
    if (name && !done) note_paths(type, 0, 0, name, "");
    return done;
}
int unlink(const char *path) { CALL(IN(AT_FDCWD, path)); return named('u', AT_FDCWD, path, REAL(unlink)(path)); }
int rmdir(const char *path) { CALL(IN(AT_FDCWD, path)); return named('d', AT_FDCWD, path, REAL(rmdir)(path)); }
int unlinkat(int at, const char *path, int flags) { CALL(IN(at, path)); return named(flags & AT_REMOVEDIR ? 'd' : 'u', at, path, REAL(unlinkat)(at, path, flags)); }
int remove(const char *path) {
    int done = unlink(path);
    return done && errno == EISDIR ? rmdir(path) : done;
}
int mkdir(const char *path, mode_t mode) { CALL(IN(AT_FDCWD, path)); return named('m', AT_FDCWD, path, REAL(mkdir)(path, mode)); }
int mkdirat(int at, const char *path, mode_t mode) { CALL(IN(at, path)); return named('m', at, path, REAL(mkdirat)(at, path, mode)); }
static int renamed(char type, int at, const char *from, int to_at, const char *to, int done) {
    char one[PATH_MAX], other[PATH_MAX];
    const char *old = ours(at, from, one), *new = ours(to_at, to, other);
    if (!done && (old || new)) note_paths(type, 0, 0, old ? old : "//", new ? new : "//");
    return done;
}
int rename(const char *from, const char *to) { CALL(IN(AT_FDCWD, from) || IN(AT_FDCWD, to)); return renamed('r', AT_FDCWD, from, AT_FDCWD, to, REAL(rename)(from, to)); }
int renameat(int at, const char *from, int to_at, const char *to) { CALL(IN(at, from) || IN(to_at, to)); return renamed('r', at, from, to_at, to, REAL(renameat)(at, from, to_at, to)); }
int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags) { CALL(IN(at, from) || IN(to_at, to)); return renamed(flags ? 'X' : 'r', at, from, to_at, to, REAL(renameat2)(at, from, to_at, to, flags)); }
int link(const char *from, const char *to) { CALL(IN(AT_FDCWD, from) || IN(AT_FDCWD, to)); return renamed('l', AT_FDCWD, from, AT_FDCWD, to, REAL(link)(from, to)); }
int linkat(int at, const char *from, int to_at, const char *to, int flags) { CALL(IN(at, from) || IN(to_at, to)); return renamed('l', at, from, to_at, to, REAL(linkat)(at, from, to_at, to, flags)); }

/* --- stdio: the C library's own writes cannot be seen, so streams below the folder are made of the calls above */

static ssize_t cookie_read(void *c, char *to, size_t size) { return read((int) (intptr_t) c, to, size); }
static ssize_t cookie_write(void *c, const char *from, size_t size) { return write((int) (intptr_t) c, from, size); }
static int cookie_seek(void *c, off64_t *at, int whence) { off64_t found = lseek64((int) (intptr_t) c, *at, whence); if (found < 0) return -1; *at = found; return 0; }
static FILE *streams[1024];
static int descriptors[1024];
static int cookie_close(void *c) {
    for (int i = 0; i < 1024; i++) if (streams[i] && descriptors[i] == (int) (intptr_t) c) streams[i] = NULL;
    return close((int) (intptr_t) c);
}
static FILE *streamed(const char *path, const char *mode, FILE *(*real)(const char *, const char *)) {
    char buffer[PATH_MAX];
    begin();
    if (mode[0] == 'r' || !ours(AT_FDCWD, path, buffer)) return real(path, mode);
    int both = strchr(mode, '+') ? O_RDWR : O_WRONLY;
    int fd = open(path, both | O_CREAT | (mode[0] == 'a' ? O_APPEND : O_TRUNC), 0666);
    if (fd < 0) return NULL;
    FILE *made = fopencookie((void *) (intptr_t) fd, mode, (cookie_io_functions_t) {cookie_read, cookie_write, cookie_seek, cookie_close});
    for (int i = 0; made && i < 1024; i++) if (!streams[i]) { streams[i] = made; descriptors[i] = fd; break; }
    return made;
}
FILE *fopen(const char *path, const char *mode) { return streamed(path, mode, REAL(fopen)); }
FILE *fopen64(const char *path, const char *mode) { return streamed(path, mode, REAL(fopen64)); }
int fileno(FILE *stream) {
    for (int i = 0; i < 1024; i++) if (streams[i] == stream) return descriptors[i];
    return REAL(fileno)(stream);
}
