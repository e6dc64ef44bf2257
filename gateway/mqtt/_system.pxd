# The system's calls, and CPython's, that the compiled leaves of this folder use.

cdef extern from "sys/socket.h" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int shutdown(int fd, int how)
    enum:
        MSG_NOSIGNAL
        MSG_DONTWAIT
        SHUT_WR

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *found)
    enum:
        CLOCK_MONOTONIC

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    void *PyUnicode_1BYTE_DATA(object text)

cdef extern from "unistd.h":
    int close_descriptor "close"(int fd)
