/* A disk that does not give back a part of one file: preloaded, it has reads of these bytes fail with EIO.
 *
 * BAD_INODE the file; BAD_START and BAD_END the bytes, the end not included.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>

static int is_bad(int fd, size_t size, off_t position)
{
    struct stat file;
    if (!getenv("BAD_INODE") || fstat(fd, &file) || file.st_ino != strtoull(getenv("BAD_INODE"), NULL, 10)) return 0;
    return position < atoll(getenv("BAD_END")) && atoll(getenv("BAD_START")) < position + (off_t)size;
}

ssize_t pread64(int fd, void *data, size_t size, off_t position)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "pread64");
    if (is_bad(fd, size, position)) { errno = EIO; return -1; }
    return next(fd, data, size, position);
}

ssize_t pread(int fd, void *data, size_t size, off_t position)
{
    return pread64(fd, data, size, position);
}
