# Simulated devices: MQTT clients that keep nothing but what a run needs, all in one thread, over epoll. No policy: who
# connects when, what is measured and what it means is Python's to say.
#
# A message bears when it should have been sent, not when it was: if a broker stalls, all that waits shows it.

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.errno cimport EAGAIN, EINTR, ENOSYS, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from loadtest.errors import LoadTestError

cdef extern from "sys/socket.h" nogil:
    ssize_t c_send "send"(int fd, const void *data, size_t size, int flags)
    ssize_t c_recv "recv"(int fd, void *data, size_t size, int flags)
    int MSG_NOSIGNAL

cdef extern from "unistd.h" nogil:
    int c_close "close"(int fd)
    long syscall(long number, ...)

cdef extern from "time.h" nogil:
    cdef struct timespec:
        int64_t tv_sec
        int64_t tv_nsec
    int clock_gettime(int clock, timespec *now)
    int CLOCK_MONOTONIC

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int ep, int what, int fd, epoll_event *event)
    int epoll_wait(int ep, epoll_event *events, int most, int timeout_ms)
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    uint32_t EPOLLIN
    uint32_t EPOLLOUT

include "_devices.pxi"


cdef class Swarm:
    """Devices in groups: those of one group publish alike, and are counted together. Sockets given to it are its own."""

    cdef Device *devices
    cdef size_t device_count
    cdef size_t device_room
    cdef Group *groups
    cdef size_t group_count
    cdef int epoll
    cdef uint8_t *received
    cdef size_t received_size
    cdef uint8_t *filler
    cdef list _kept
    cdef dict _layers               # by the device's number
    cdef readonly str layer_fault   # what went wrong first under a device, in TLS or WebSocket
    cdef bint has_pwait2
    cdef readonly int opening       # connected to, and not ready
    cdef readonly int ready
    cdef readonly int lost          # refused, or closed by the broker
    cdef int refusal                # reason code of the first CONNACK or SUBACK that refused
    cdef bint is_faulty             # a packet that no broker may send

    def __cinit__(self):
        self.epoll = epoll_create1(0)
        self.received_size = RECEIVE_BYTES + LAYER_ROOM
        self.received = <uint8_t *>malloc(self.received_size)
        self.filler = <uint8_t *>malloc(FILLER_BYTES)
        if self.received == NULL or self.filler == NULL or self.epoll < 0:
            raise MemoryError
        memset(self.filler, 0x2E, FILLER_BYTES)
        self._kept = []
        self._layers = {}
        self.layer_fault = ""
        self.has_pwait2 = True

    def __dealloc__(self):
        self._close()
        cdef size_t i
        for i in range(self.group_count):
            free(self.groups[i].delivery)
            free(self.groups[i].acknowledging)
            free(self.groups[i].devices)
            free(self.groups[i].sizes)
            free(self.groups[i].topics)
            free(self.groups[i].topic_sizes)
        PyMem_Free(self.groups)
        PyMem_Free(self.devices)
        free(self.received)
        free(self.filler)

    cdef void _close(self) noexcept:
        cdef size_t i
        for i in range(self.device_count):
            self._release(&self.devices[i])
        self.device_count = 0
        if self.epoll >= 0:
            c_close(self.epoll)
        self.epoll = -1

    cdef void _release(self, Device *device) noexcept nogil:
        if device.fd >= 0:
            c_close(device.fd)
        device.fd = -1
        free(device.out)
        free(device.rest)
        free(device.due_ns)
        free(device.greeting)
        free(device.wire)
        device.out = device.rest = device.greeting = device.wire = NULL
        device.due_ns = NULL
        device.wire_begin = device.wire_end = 0
        if device.layer != NULL:
            device.layer = NULL
            self._forget_layer(device)
        device.out_begin = device.out_end = device.out_size = device.rest_size = 0

    cdef void _forget_layer(self, Device *device) noexcept with gil:
        if self._layers is not None:
            self._layers.pop(device - self.devices, None)

    def close(self):
        """Close all sockets, without a DISCONNECT."""
        self._close()

    # --- who there is

    def add_group(self, list topics, int topics_each, int qos, int window, list sizes, bint retain=False):
        """Devices that publish to `topics` (bytes), so many each, in turn; none if they do not publish.

        `sizes` of the payloads in bytes, in turn, each from 16 to 1 MiB; `window`: messages in flight of each.
        """
        cdef size_t i
        cdef bytes topic
        if not all(16 <= size <= FILLER_BYTES for size in sizes):
            raise ValueError("a payload has 16 bytes to 1 MiB")
        groups = <Group *>PyMem_Realloc(self.groups, (self.group_count + 1) * sizeof(Group))
        if groups == NULL:
            raise MemoryError
        self.groups = groups
        cdef Group *group = &groups[self.group_count]
        memset(group, 0, sizeof(Group))
        group.delivery = <uint64_t *>malloc(BUCKETS * sizeof(uint64_t))
        group.acknowledging = <uint64_t *>malloc(BUCKETS * sizeof(uint64_t))
        group.sizes = <uint32_t *>malloc(max(1, len(sizes)) * sizeof(uint32_t))
        group.topics = <const char **>malloc(max(1, len(topics)) * sizeof(char *))
        group.topic_sizes = <uint16_t *>malloc(max(1, len(topics)) * sizeof(uint16_t))
        memset(group.delivery, 0, BUCKETS * sizeof(uint64_t))
        memset(group.acknowledging, 0, BUCKETS * sizeof(uint64_t))
        self._kept.append(topics)
        for i, topic in enumerate(topics):
            group.topics[i] = topic
            group.topic_sizes[i] = <uint16_t>len(topic)
        for i, size in enumerate(sizes):
            group.sizes[i] = size
        group.size_count = len(sizes)
        group.topic_count = topics_each
        group.qos, group.window, group.retain = qos, window, retain
        self.group_count += 1
        return self.group_count - 1

    def add_device(self, uint32_t number, int fd, int version, bytes connect not None, bytes subscribe not None,
                   object layer=None):
        """One more device of a group, on a socket that is connected or will be; `layer`: a devices.layers.DeviceLayer."""
        if self.device_count == self.device_room:
            self.device_room = max(1024, 2 * self.device_room)
            devices = <Device *>PyMem_Realloc(self.devices, self.device_room * sizeof(Device))
            if devices == NULL:
                raise MemoryError
            self.devices = devices
        cdef Group *group = &self.groups[number]
        cdef Device *device = &self.devices[self.device_count]
        memset(device, 0, sizeof(Device))
        group.devices = <uint32_t *>realloc(group.devices, (group.count + 1) * sizeof(uint32_t))
        group.devices[group.count] = <uint32_t>self.device_count
        device.fd, device.version, device.group, device.index = fd, version, number, group.count
        group.count += 1
        cdef bytes greeting = connect + subscribe
        device.connect_size, device.greeting_size = len(connect), len(greeting)
        device.greeting = <uint8_t *>malloc(device.greeting_size)
        memcpy(device.greeting, <const char *>greeting, device.greeting_size)
        if group.topic_count and group.qos:
            device.due_ns = <uint64_t *>malloc(group.window * sizeof(uint64_t))
        if layer is not None:
            self._layers[self.device_count] = layer
            device.layer = <void *>layer
        device.wants_write = True
        cdef epoll_event event
        event.events = EPOLLIN | EPOLLOUT
        event.data.u64 = self.device_count
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event):
            raise OSError(errno, "epoll_ctl")
        self.device_count += 1
        self.opening += 1

    def publish(self, uint32_t number, double rate, uint64_t most=0):
        """Have a group begin: so many messages a second in all, evenly spread; 0: as fast as it goes.

        `most`: messages of each device; 0: until stop().
        """
        cdef Group *group = &self.groups[number]
        cdef uint32_t i
        if self.in_flight(number):
            raise ValueError("messages of the last time are in flight")
        group.start_ns = now_ns()
        group.interval_ns = 1e9 / rate if rate > 0 else 0
        group.due = 0
        group.most = most
        group.is_publishing = True
        for i in range(group.count):
            self.devices[group.devices[i]].sent = self.devices[group.devices[i]].acked = 0
            if group.interval_ns == 0:
                self._pump(&self.devices[group.devices[i]])

    def stop(self, uint32_t number):
        """Publish no more."""
        self.groups[number].is_publishing = False

    def cut(self, uint32_t number):
        """Close the connections of a group; its devices are gone from it."""
        cdef Group *group = &self.groups[number]
        cdef uint32_t i
        cdef Device *device
        for i in range(group.count):
            device = &self.devices[group.devices[i]]
            if device.phase == READY:
                self.ready -= 1
            elif device.phase != LOST:
                self.opening -= 1
            device.phase = LOST
            self._release(device)
        group.count = 0

    def leave(self, uint32_t number):
        """As cut(), but each says DISCONNECT first."""
        cdef Group *group = &self.groups[number]
        cdef uint8_t goodbye[2]
        cdef uint32_t i
        goodbye[0], goodbye[1] = 0xE0, 0
        for i in range(group.count):
            if self.devices[group.devices[i]].phase == READY:
                self._say(&self.devices[group.devices[i]], goodbye, 2)
                self._flush(&self.devices[group.devices[i]])
        self.cut(number)

    # --- what is counted

    def counters(self, uint32_t number):
        return dict(self.groups[number].counters)

    def left(self, uint32_t number):
        """Messages that are still to be sent, of a group that publishes so many; 0 of one that does not end."""
        cdef Group *group = &self.groups[number]
        cdef uint64_t sent = 0
        cdef uint32_t i
        for i in range(group.count):
            sent += self.devices[group.devices[i]].sent
        return group.most * group.count - sent if group.most else 0

    def in_flight(self, uint32_t number):
        """Messages that should have been acknowledged, or sent, and are not."""
        cdef Group *group = &self.groups[number]
        cdef uint64_t sent = 0, acked = 0
        cdef uint32_t i
        for i in range(group.count):
            sent += self.devices[group.devices[i]].sent
            acked += self.devices[group.devices[i]].acked
        return (sent - acked if group.qos else 0) + (group.due - sent if group.interval_ns and group.due > sent else 0)

    def latencies(self, uint32_t number, bint of_acknowledging=False):
        """[(µs, count)] since the last call of forget_latencies()."""
        cdef uint64_t *buckets = (self.groups[number].acknowledging if of_acknowledging else self.groups[number].delivery)
        cdef size_t i
        return [(bucket_us(i), buckets[i]) for i in range(BUCKETS) if buckets[i]]

    def forget_latencies(self):
        cdef size_t i
        for i in range(self.group_count):
            memset(self.groups[i].delivery, 0, BUCKETS * sizeof(uint64_t))
            memset(self.groups[i].acknowledging, 0, BUCKETS * sizeof(uint64_t))

    @property
    def reason_code(self):
        """Of the first CONNACK or SUBACK that refused; 0 if none did."""
        return self.refusal

    @property
    def has_met_a_fault(self):
        """Whether a broker sent what is no MQTT."""
        return self.is_faulty

    # --- the loop

    def run(self, uint64_t until_ns):
        """Let the devices do what they do, until then by monotonic_ns()."""
        with nogil:
            self._run(until_ns)

    cdef void _run(self, uint64_t until_ns) noexcept nogil:
        cdef epoll_event events[EVENTS]
        cdef int count, i
        cdef uint64_t now = now_ns(), next_ns
        cdef Device *device
        while now < until_ns:
            next_ns = self._due(now, until_ns)
            count = self._wait(events, next_ns - now if next_ns > now else 0)
            for i in range(count):
                device = &self.devices[events[i].data.u64]
                if device.phase == LOST:
                    continue
                if events[i].events & EPOLLOUT:
                    self._writable(device)
                if events[i].events & ~EPOLLOUT and device.phase != LOST:
                    readable(self, device)
            now = now_ns()

    cdef int _wait(self, epoll_event *events, uint64_t ns) noexcept nogil:
        cdef timespec timeout
        cdef long count
        if self.has_pwait2:
            timeout.tv_sec, timeout.tv_nsec = ns // 1000000000, ns % 1000000000
            count = syscall(SYS_EPOLL_PWAIT2, self.epoll, events, EVENTS, &timeout, NULL, 0)
            if count >= 0 or errno != ENOSYS:
                return <int>count
            self.has_pwait2 = False
        return epoll_wait(self.epoll, events, EVENTS, <int>(ns // 1000000))

    cdef uint64_t _due(self, uint64_t now, uint64_t until_ns) noexcept nogil:
        """Publish what is due; when the next message will be."""
        cdef size_t i
        cdef Group *group
        cdef uint64_t due, first, next_ns = until_ns, at
        for i in range(self.group_count):
            group = &self.groups[i]
            if not group.is_publishing or group.interval_ns == 0 or not group.count:
                continue
            due = <uint64_t>((now - group.start_ns) / group.interval_ns) + 1
            if group.most and due > group.most * group.count:
                due = group.most * group.count
            first, group.due = group.due, due
            for at in range(first, due if due - first < group.count else first + group.count):
                self._pump(&self.devices[group.devices[at % group.count]])
            if not group.most or due < group.most * group.count:
                at = group.start_ns + <uint64_t>(due * group.interval_ns)
                next_ns = at if at < next_ns else next_ns
        return next_ns

    # --- out

    cdef void _pump(self, Device *device) noexcept nogil:
        """Publish what may be published, gathered into few sends."""
        cdef Group *group = &self.groups[device.group]
        cdef uint64_t due, now = 0
        if device.phase != READY or not group.is_publishing or not group.topic_count:
            return
        device.is_waiting = False
        while device.out_end - device.out_begin < SEND_BYTES:
            if group.qos and device.sent - device.acked >= group.window:
                break
            if group.most and device.sent >= group.most:
                break
            if group.interval_ns:
                if device.sent * group.count + device.index >= group.due:
                    break
                due = group.start_ns + <uint64_t>((device.sent * group.count + device.index) * group.interval_ns)
            else:
                due = now = now or now_ns()
            self._publish(device, group, due)
        else:
            device.is_waiting = True
        self._flush(device)

    cdef void _publish(self, Device *device, Group *group, uint64_t due) noexcept nogil:
        cdef uint64_t turn = device.sent % group.topic_count
        cdef size_t at = device.index * group.topic_count + turn
        cdef size_t topic_size = group.topic_sizes[at]
        cdef size_t size = group.sizes[device.sent % group.size_count]
        cdef size_t left = 2 + topic_size + (2 if group.qos else 0) + (1 if device.version == 5 else 0) + size
        cdef uint8_t *p = self._room(device, left + 5)
        cdef uint8_t *begin = p
        p[0] = <uint8_t>(0x30 | group.qos << 1 | group.retain)
        p += 1
        while left > 127:
            p[0] = <uint8_t>(left & 127 | 128)
            left >>= 7
            p += 1
        p[0] = <uint8_t>left
        p[1] = <uint8_t>(topic_size >> 8)
        p[2] = <uint8_t>topic_size
        memcpy(p + 3, group.topics[at], topic_size)
        p += 3 + topic_size
        if group.qos:
            device.packet_id = 1 if device.packet_id == 65535 else device.packet_id + 1
            p[0] = <uint8_t>(device.packet_id >> 8)
            p[1] = <uint8_t>device.packet_id
            p += 2
            device.due_ns[device.sent % group.window] = due
        if device.version == 5:
            p[0] = 0
            p += 1
        memcpy(p, &due, 8)
        memcpy(p + 8, &device.index, 4)
        cdef uint32_t sequence = <uint32_t>device.sent
        memcpy(p + 12, &sequence, 4)
        memcpy(p + 16, self.filler, size - 16)
        device.out_end += p + size - begin
        device.sent += 1
        group.counters.sent += 1

    cdef uint8_t *_room(self, Device *device, size_t size) noexcept nogil:
        """Where so many bytes can be written that go out; to be followed by an increase of out_end."""
        cdef size_t waiting = device.out_end - device.out_begin
        if device.out_end + size > device.out_size:
            if waiting + size > device.out_size:
                device.out_size = max(2 * device.out_size, waiting + size, <size_t>256)
                device.out = <uint8_t *>realloc(device.out, device.out_size)
            memmove(device.out, device.out + device.out_begin, waiting)
            device.out_begin, device.out_end = 0, waiting
        return device.out + device.out_end

    cdef void _flush(self, Device *device) noexcept nogil:
        cdef ssize_t sent
        if device.layer != NULL:
            flush_through_layer(self, device)
            return
        while device.out_begin < device.out_end:
            sent = c_send(device.fd, device.out + device.out_begin, device.out_end - device.out_begin, MSG_NOSIGNAL)
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno != EAGAIN:
                    self._lose(device)
                    return
                break
            self.groups[device.group].counters.bytes_out += sent
            device.out_begin += sent
        if device.out_begin == device.out_end:
            device.out_begin = device.out_end = 0
            if device.out_size > (4 * SEND_BYTES if self.groups[device.group].topic_count else KEPT_BYTES):
                free(device.out)
                device.out, device.out_size = NULL, 0
        self._want_write(device, device.out_end > 0 or device.is_waiting)

    cdef void _want_write(self, Device *device, bint wanted) noexcept nogil:
        cdef epoll_event event
        if wanted == device.wants_write:
            return
        device.wants_write = wanted
        event.events = EPOLLIN | (EPOLLOUT if wanted else 0)
        event.data.u64 = self.groups[device.group].devices[device.index]
        epoll_ctl(self.epoll, EPOLL_CTL_MOD, device.fd, &event)

    cdef void _say(self, Device *device, const uint8_t *data, size_t size) noexcept nogil:
        memcpy(self._room(device, size), data, size)
        device.out_end += size

    cdef void _writable(self, Device *device) noexcept nogil:
        if device.phase == CONNECTING and device.layer != NULL:
            device.phase = OPENING
            open_layer(self, device)
            return
        if device.phase == CONNECTING:
            device.phase = GREETING
            self._say(device, device.greeting, device.connect_size)
        if device.is_waiting:
            self._pump(device)
        else:
            self._flush(device)

    cdef void _lose(self, Device *device) noexcept nogil:
        if device.phase == READY:
            self.ready -= 1
        else:
            self.opening -= 1
        device.phase = LOST
        self.lost += 1
        self._release(device)


include "_layered.pxi"
include "_incoming.pxi"
