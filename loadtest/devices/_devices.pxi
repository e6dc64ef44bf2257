# A device, the counters of a group of devices, and the buckets of latencies.

cdef enum:
    RECEIVE_BYTES = 1 << 20
    SEND_BYTES = 1 << 16    # gathered before they are sent
    KEPT_BYTES = 1 << 12    # of its buffer, by a device that only answers
    FILLER_BYTES = 1 << 20
    LAYER_ROOM = 1 << 17    # read at once for a layer
    EVENTS = 1024
    SYS_EPOLL_PWAIT2 = 441
    # Latencies are counted in buckets as a HDR histogram of three digits has them: each power of two from 2,048 µs on
    # has 1,024 of them, and below that there is one for each µs.
    DIGIT_BITS = 11
    HALF = 1 << 10
    BUCKETS = HALF * 31     # up to 25 days

cdef enum:
    CONNECTING
    OPENING       # its layer shakes hands
    GREETING      # has sent its CONNECT
    SUBSCRIBING
    READY
    LOST

ctypedef struct Device:
    int fd
    int phase
    int version
    bint wants_write
    bint is_waiting         # for the socket, with more to publish
    uint32_t group
    uint32_t index          # in its group
    uint16_t packet_id
    uint64_t sent
    uint64_t acked
    uint64_t *due_ns        # of its messages in flight, a ring
    uint8_t *greeting       # a CONNECT, and a SUBSCRIBE if it has one
    size_t connect_size
    size_t greeting_size
    uint8_t *out
    size_t out_begin
    size_t out_end
    size_t out_size
    uint8_t *rest           # of what came: the begin of a packet
    size_t rest_size
    void *layer             # TLS or WebSocket under it; the swarm keeps it
    uint8_t *wire           # what the layer made, to be sent before any more of `out` is given to it
    size_t wire_begin
    size_t wire_end

ctypedef struct Counters:
    uint64_t sent
    uint64_t acked
    uint64_t refused        # acknowledged with an error
    uint64_t delivered
    uint64_t retained
    uint64_t repeated       # with DUP
    uint64_t bytes_in
    uint64_t bytes_out

ctypedef struct Group:
    Counters counters
    uint64_t *delivery      # buckets of latencies
    uint64_t *acknowledging
    uint32_t count          # devices
    uint32_t *devices
    int qos
    bint retain
    uint32_t window
    uint32_t size_count     # payloads have these sizes in turn
    uint32_t *sizes
    uint32_t topic_count    # of each device
    const char **topics
    uint16_t *topic_sizes
    bint is_publishing
    uint64_t most           # messages of each device; 0: no limit
    uint64_t start_ns
    double interval_ns      # between two messages of the group; 0: as fast as it goes
    uint64_t due            # messages of the group that should have been sent by now


cdef uint64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec


cdef size_t bucket_of(uint64_t us) noexcept nogil:
    cdef size_t shift = 0
    while us >= (1 << DIGIT_BITS):
        us >>= 1
        shift += 1
    cdef size_t found = shift * HALF + <size_t>us
    return found if found < BUCKETS else BUCKETS - 1


cdef void count_latency(uint64_t *buckets, uint64_t due, uint64_t now) noexcept nogil:
    buckets[bucket_of((now - due) // 1000 if now > due else 0)] += 1


def bucket_us(size_t bucket):
    """The middle of what a bucket counts."""
    if bucket < 2 * HALF:
        return bucket
    cdef size_t shift = bucket // HALF - 1
    cdef uint64_t low = <uint64_t>(bucket - shift * HALF) << shift
    return low + ((1 << shift) >> 1)


def monotonic_ns():
    """The clock that `Swarm.run` goes by."""
    return now_ns()
