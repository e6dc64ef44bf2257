"""Compiled leaf: a file mapped for reading, in which bytes that the disk cannot give back read as zeros.

Without it such bytes end the process by SIGBUS (mmap(2)): a sector that cannot be read, or a file that was cut off
meanwhile. The signal's handler puts a page of zeros in the place of the one that failed, and the reader goes on. Zeros are
no valid record, so the log treats them as damage. No descriptor stays open for the mapping.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport ENOMEM, errno
from libc.string cimport strerror

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <stdatomic.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <unistd.h>

    /* One mapping. Places are never freed, only used again, so that the handler may walk them at any moment. */
    typedef struct penstock_place {
        _Atomic(uintptr_t) start, end;    /* start 0: free */
        struct penstock_place *next;
    } penstock_place;

    static _Atomic(penstock_place *) penstock_places;
    static atomic_long penstock_unreadable;
    static struct sigaction penstock_before;
    static uintptr_t penstock_page;

    static void penstock_on_bus(int number, siginfo_t *info, void *context) {
        int saved = errno;
        uintptr_t at = (uintptr_t)info->si_addr, page = at & ~(penstock_page - 1);
        for (penstock_place *place = penstock_places; place; place = place->next) {
            uintptr_t start = place->start;
            if (!start || at < start || at >= place->end) continue;
            void *zeros = mmap((void *)page, penstock_page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            if (zeros == MAP_FAILED) break;
            penstock_unreadable++;
            errno = saved;
            return;
        }
        errno = saved;
        if (penstock_before.sa_flags & SA_SIGINFO) {
            penstock_before.sa_sigaction(number, info, context);
        } else if (penstock_before.sa_handler == SIG_DFL || penstock_before.sa_handler == SIG_IGN) {
            signal(number, SIG_DFL);    /* the access fails again, and ends the process */
        } else {
            penstock_before.sa_handler(number);
        }
    }

    static int penstock_watch_bus(void) {
        if (penstock_page) return 0;
        penstock_page = (uintptr_t)sysconf(_SC_PAGESIZE);
        struct sigaction action = {.sa_sigaction = penstock_on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        return sigaction(SIGBUS, &action, &penstock_before);
    }

    /* Map a file and note the place; NULL with errno on failure. Called with Python's lock held. */
    static penstock_place *penstock_map(int fd, size_t size) {
        if (penstock_watch_bus()) return NULL;
        penstock_place *place = penstock_places;
        while (place && place->start) place = place->next;
        penstock_place *made = place ? NULL : calloc(1, sizeof *made);
        if (!place && !made) return NULL;
        void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            free(made);
            return NULL;
        }
        if (made) {
            made->next = penstock_places;
            penstock_places = place = made;
        }
        place->end = (uintptr_t)data + size;
        place->start = (uintptr_t)data;
        return place;
    }

    static void penstock_unmap(penstock_place *place) {
        uintptr_t start = place->start;
        munmap((void *)start, place->end - start);
        place->start = 0;
    }
    """
    ctypedef struct penstock_place:
        size_t start
        size_t end
    penstock_place *penstock_map(int fd, size_t size)
    void penstock_unmap(penstock_place *place)
    long penstock_unreadable
    int madvise(void *start, size_t size, int advice)
    const int MADV_DONTNEED


def unreadable_pages():
    """Pages of all mapped files, of this process, that could not be read so far; one that is given back and read
    again counts once."""
    return penstock_unreadable


cdef class MappedFile:
    """The first `size` bytes of a file, as a read-only buffer."""

    cdef penstock_place *_place
    cdef Py_ssize_t _size
    cdef Py_ssize_t _views

    def __init__(self, int fd, Py_ssize_t size):
        """`fd` may be closed afterwards. Raises OSError; ValueError if `size` is not positive."""
        if size <= 0:
            raise ValueError(f"cannot map {size} bytes")
        if self._place is not NULL:
            raise ValueError("mapped already")
        self._place = penstock_map(fd, size)
        if self._place is NULL:
            raise OSError(errno or ENOMEM, strerror(errno or ENOMEM).decode())
        self._size = size

    def __dealloc__(self):
        if self._place is not NULL:
            penstock_unmap(self._place)

    def __len__(self):
        return self._size

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self._place is NULL:
            raise ValueError("the mapping is closed")
        PyBuffer_FillInfo(view, self, <void *>self._place.start, self._size, True, flags)
        self._views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._views -= 1

    def forget_pages(self):
        """Give its pages back to the page cache, so that they do not count as this process's memory."""
        if self._place is not NULL:
            madvise(<void *>self._place.start, self._size, MADV_DONTNEED)

    def close(self):
        """Unmap it. Raises BufferError while a view of it is in use; then it goes with the last view."""
        if self._views:
            raise BufferError("a view of the mapping is in use")
        if self._place is not NULL:
            penstock_unmap(self._place)
            self._place = NULL
