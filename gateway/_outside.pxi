# The part of _wire.pyx that it is built on: the system's calls, its bounds, the outcomes of deliver().

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

cdef extern from "unistd.h":
    int close_descriptor "close"(int fd)

cdef enum:
    BATCH_LIMIT = 1 << 20           # a turn's batch is stored early once it is this large (bytes)
    LIVE_TOPICS_LIMIT = 100_000     # topics of which a turn knows whether they are live-only
    REMEMBERED_TOPIC_BYTES = 512    # a longer topic name is kept in no table: clients could fill these with 64 KB each
    PACKETS_AT_ONCE = 8_192         # that one link may bring before others have their turn
    WORK_AT_ONCE_NS = 1_000_000     # that all links may take of one turn with packets that are not the compiled part's
    FEEDS_LIMIT = 16                # a turn is ended early once this many chunks have come in
    ALIAS_BYTES = 3                 # that a topic alias takes in a packet
    SHARED_BYTES = 256 << 10        # payloads from here on are sent from one copy to all who get them
    GATHERED_LIMIT = 1 << 20        # a link that has gathered so much to send is flushed before it gets more
    NEEDS_MORE = 1                  # outcomes of deliver()
    NEEDS_SESSION = 2

DONE, BLOCKED, SESSION = 0, NEEDS_MORE, NEEDS_SESSION
BATCH_BYTES = BATCH_LIMIT
