# The part of _mqtt.pyx that takes in what clients send: one epoll for the sockets of all of them (docs/adr/0026-one-epoll-for-all-clients.md).

import socket

from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport strerror

from gateway.mqtt._addresses cimport ClientAddress, address_as_tuple, find_peer, read_address

cdef extern from *:
    """
    #include <errno.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #define PENSTOCK_EPOLL 1
    #else
    #define PENSTOCK_EPOLL 0
    #define EPOLL_CLOEXEC 0
    enum { EPOLLIN = 1, EPOLLOUT = 4, EPOLL_CTL_ADD = 1, EPOLL_CTL_DEL, EPOLL_CTL_MOD };
    typedef union { int fd; } epoll_data_t;
    struct epoll_event { uint32_t events; epoll_data_t data; };
    static int epoll_create1(int flags) { errno = ENOSYS; return -1; }
    static int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event) { errno = ENOSYS; return -1; }
    static int epoll_wait(int epfd, struct epoll_event *events, int most, int ms) { errno = ENOSYS; return -1; }
    #endif
    """
    const int PENSTOCK_EPOLL
    enum:
        EPOLL_CLOEXEC
        EPOLLIN
        EPOLLOUT
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int most, int ms)

HAS_EPOLL = bool(PENSTOCK_EPOLL)

cdef enum:
    EVENTS_AT_ONCE = 64     # sockets that are served before anything else of the loop has its turn


cdef object system_error():
    return OSError(errno, strerror(errno).decode())


@cython.final
cdef class Sockets:
    """Owner of the sockets that clients are connected by. Have look() called when fileno() is readable.

    Each is read once for each look, so one that sends without end keeps nobody waiting.
    """

    cdef Turn turn
    cdef bytearray read_buffer
    cdef object call_soon
    cdef list transports            # by descriptor
    cdef int epoll_fd
    cdef bint has_lost              # somebody, in this look
    cdef readonly int64_t held_bytes    # of all clients: sent, and not taken by the system
    cdef int first, count           # of the events those that are to be served
    cdef epoll_event[EVENTS_AT_ONCE] events

    def __cinit__(self, *args):
        self.epoll_fd = -1

    def __init__(self, Turn turn not None, bytearray read_buffer not None, call_soon):
        """`read_buffer` is the one that links are fed from. Raises OSError."""
        self.turn = turn
        self.read_buffer = read_buffer
        self.call_soon = call_soon
        self.transports = []
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise system_error()

    def __dealloc__(self):
        if self.epoll_fd >= 0:
            close_descriptor(self.epoll_fd)

    def fileno(self):
        return self.epoll_fd

    def open(self, int fd, protocol, address=None):
        """Give a connected socket that does not block to an asyncio.BufferedProtocol. Raises OSError; `fd` is closed then.

        `address`: the client's, as accept() said it, so that it is known of clients too that leave at once.
        """
        cdef SocketTransport transport = SocketTransport.__new__(SocketTransport)
        transport.sockets = self
        transport.protocol = protocol
        transport.fd = fd
        transport.high_bytes = 64 << 10
        transport.reading = True
        if address is None:
            find_peer(fd, &transport.peer)
        else:
            read_address(address, &transport.peer)
        if not transport.watch(EPOLLIN):
            raise system_error()
        if fd >= len(self.transports):
            self.transports.extend([None] * (fd + 1 - len(self.transports)))
        self.transports[fd] = transport
        protocol.connection_made(transport)

    def look(self):
        """Take in what has come, and end the turn if there is something to end it for; but who has left is told first,
        so that nothing is put in flight to those. Once a turn has enough to do, other sockets wait for the next look."""
        cdef uint64_t turn = self.turn.turns, most_ns = self.turn.worked_ns + WORK_AT_ONCE_NS
        if self.turn.was_long:
            self.turn.was_long, self.turn.owes_look = False, True
            return
        self.turn.owes_look = False
        if self.turn.unsent:
            return
        self.turn.gathering, self.has_lost = True, False
        try:
            if self.first < self.count:
                self.serve_found(turn, most_ns)     # what came before the last turn ended
            if self.first >= self.count and self.turn.worked_ns < most_ns and self.turn.turns == turn:
                self.find_ready()
                self.serve_found(turn, most_ns)
            if self.turn.worked_ns >= WORK_AT_ONCE_NS:
                self.turn.schedule()    # whatever it was, it counts as this turn's
            if self.first >= self.count and self.count > 0 and self.turn.scheduled:
                # If the last look found any: what was read stays in epoll's list until it is looked for again, and what its
                # senders send in answer to this turn would come before what others sent earlier.
                self.find_ready()
        finally:
            self.turn.gathering = False
            if self.turn.scheduled and self.has_lost:
                self.turn.owner.wake()
            elif self.turn.scheduled:
                self.turn.owner.end_turn()

    cdef int find_ready(self) noexcept:
        self.first, self.count = 0, epoll_wait(self.epoll_fd, self.events, EVENTS_AT_ONCE, 0)
        return 0

    cdef int serve_found(self, uint64_t turn, uint64_t most_ns) except -1:
        """The sockets that were found ready, until `turn` is over or has worked for `most_ns`."""
        cdef epoll_event event
        cdef SocketTransport transport
        while self.first < self.count and self.turn.worked_ns < most_ns and self.turn.turns == turn:
            event = self.events[self.first]
            self.first += 1
            # Not of a socket closed meanwhile. If its descriptor has another already, recv() finds nothing there.
            transport = self.transports[event.data.fd]
            if transport is not None:
                transport.serve(event.events)
        return 0


@cython.final
cdef class SocketTransport:
    """One client's socket: what asyncio's transport is to a protocol."""

    cdef Sockets sockets
    cdef object protocol
    cdef Held held                  # written, and not taken by the system so far; None: nothing
    cdef size_t high_bytes          # as much of that, and the protocol is to pause
    cdef ClientAddress peer         # the system forgets it once the other end has left
    cdef int fd
    cdef uint8_t watched            # events that epoll reports: EPOLLIN, EPOLLOUT
    cdef uint8_t reading
    cdef uint8_t paused             # the protocol was told to
    cdef uint8_t ended              # nothing is to be sent after what is held
    cdef uint8_t closing
    cdef uint8_t lost               # the protocol is told, or will be

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            close_descriptor(self.fd)

    # --- what epoll says

    cdef bint watch(self, uint32_t events) noexcept:
        """Sockets of which nothing is wanted are not in epoll: it would report errors of theirs again and again."""
        cdef epoll_event event
        cdef int op = EPOLL_CTL_DEL if not events else EPOLL_CTL_MOD if self.watched else EPOLL_CTL_ADD
        if events != self.watched:
            event.events = events
            event.data.fd = self.fd
            if epoll_ctl(self.sockets.epoll_fd, op, self.fd, &event) < 0:
                return False
            self.watched = events
        return True

    cdef int watch_again(self) except -1:
        if not self.lost and not self.watch((EPOLLIN if self.reading else 0) | (EPOLLOUT if self.held is not None else 0)):
            self.lose(system_error())
        return 0

    cdef int serve(self, uint32_t events) except -1:
        """Whatever else it reports besides room to write shows in reading, or in writing if it is not read."""
        try:
            if events & ~<uint32_t>EPOLLOUT and self.watched & EPOLLIN:
                self.read()
            if events & ~<uint32_t>EPOLLIN and self.watched & EPOLLOUT:
                self.write_held()
        except Exception as error:
            self.lose(error)
            raise
        return 0

    cdef int read(self) except -1:
        cdef bytearray shared = self.sockets.read_buffer
        cdef char *data = PyByteArray_AS_STRING(shared)
        cdef bint is_link = isinstance(self.protocol, Link)
        cdef unsigned char[::1] other
        cdef size_t size = PyByteArray_GET_SIZE(shared)
        cdef ssize_t got
        if is_link and (<Link>self.protocol).crowding:
            return 0        # in this turn: its readers are sent what came so far, and that is enough for a send
        if not is_link:
            other = self.protocol.get_buffer(-1)
            data, size = <char *>&other[0], other.shape[0]
        elif (<Link>self.protocol).session is None:
            size = min(size, <size_t>(<Link>self.protocol).max_packet_in)   # no more than may be kept of it
        got = recv(self.fd, data, size, MSG_DONTWAIT)
        if got > 0:
            if is_link:
                (<Link>self.protocol).take_in(data, got)
            else:
                self.protocol.buffer_updated(got)
        elif got == 0:
            if self.protocol.eof_received():
                self.pause_reading()
            else:
                self.close()
        elif errno != EAGAIN and errno != EINTR:
            self.lose(system_error())
        return 0

    cdef int write_held(self) except -1:
        cdef ssize_t sent = self.held.send_to(self.fd)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                self.lose(system_error())
            return 0
        self.sockets.held_bytes -= sent
        if not self.held.size:
            self.held = None
            if self.closing:
                self.lose(None)
            elif self.ended:
                shutdown(self.fd, SHUT_WR)
            self.watch_again()
        if self.paused and not self.lost and self.get_write_buffer_size() <= self.high_bytes // 4:
            self.paused = False
            self.protocol.resume_writing()
        return 0

    # --- what the protocol says

    def write(self, const unsigned char[::1] data not None):
        """What the system does not take is held."""
        cdef ssize_t sent = 0, size = data.shape[0]
        if self.ended:
            raise RuntimeError("written to after write_eof()")
        if self.lost or not size:
            return
        if self.held is None:
            sent = send(self.fd, &data[0], size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent == size:
                return
            if sent < 0:
                if errno != EAGAIN and errno != EINTR:
                    self.lose(system_error())
                    return
                sent = 0
            self.held = Held()
            self.watch_again()
        if not self.lost:
            self.held.add(<const char *>&data[sent], size - sent)
            self.sockets.held_bytes += size - sent
            self.pause_if_full()

    cdef int hold(self, Block block, size_t sent) except -1:
        """Send what is left of a block of which the system took `sent` bytes; the block is not copied."""
        if self.lost or self.ended:
            return 0
        if self.held is None:
            self.held = Held()
            self.watch_again()
        if not self.lost:
            self.held.hold(block, sent)
            self.sockets.held_bytes += block.size - sent
            self.pause_if_full()
        return 0

    cdef int pause_if_full(self) except -1:
        if not self.paused and not self.lost and self.get_write_buffer_size() > self.high_bytes:
            self.paused = True
            self.protocol.pause_writing()
        return 0

    def set_write_buffer_limits(self, size_t high):
        self.high_bytes = high
        self.pause_if_full()

    def get_write_buffer_size(self):
        return self.held.size if self.held is not None else 0

    def pause_reading(self):
        self.reading = False
        self.watch_again()

    def resume_reading(self):
        if not self.closing:
            self.reading = True
            self.watch_again()

    def is_reading(self):
        return bool(self.reading)

    def held_bytes(self):
        """A copy of what was written and not taken by the system so far."""
        return self.held.copy() if self.held is not None else b""

    def hold_back(self, bytes data not None):
        """Send this first, once the socket is looked at: nothing is sent by this call."""
        if data and not self.lost:
            self.held = Held()
            self.held.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            self.sockets.held_bytes += PyBytes_GET_SIZE(data)
            self.watch_again()
            self.pause_if_full()

    def forget(self):
        """Take the socket out of epoll, so that it can be given to another process."""
        self.watch(0)

    def give_up(self):
        """Forget the socket, which is the caller's from now on: nothing is read, written or closed here, and the protocol is
        told nothing."""
        if self.fd >= 0:
            self.watch(0)
            self.lost = self.closing = True
            self.reading = False
            self.held = self.protocol = None
            self.sockets.transports[self.fd] = None
            self.fd = -1

    def look_again(self):
        """Put it into epoll again."""
        self.watch_again()

    def can_write_eof(self):
        return True

    def write_eof(self):
        """Once what is held is written."""
        if not self.ended:
            self.ended = True
            if self.held is None and not self.lost:
                shutdown(self.fd, SHUT_WR)      # if that fails, so does recv()

    def close(self):
        """Once what is held is written. Idempotent."""
        self.closing = True
        self.reading = False
        if self.held is None:
            self.lose(None)
        else:
            self.watch_again()

    def is_closing(self):
        return bool(self.closing)

    def abort(self):
        """Now, whatever is held."""
        self.lose(None)

    cdef int lose(self, error) except -1:
        """The protocol is told later: it may be in the midst of something."""
        if not self.lost:
            self.lost = self.closing = True
            self.reading = False
            if self.held is not None:
                self.sockets.held_bytes -= self.held.size
                self.held = None
            self.watch(0)
            self.sockets.has_lost = True
            self.sockets.turn.worked_ns += LOST_NS
            self.sockets.call_soon(self._tell, error)
        return 0

    def _tell(self, error):
        if self.fd < 0:
            return      # given up meanwhile
        protocol, self.protocol = self.protocol, None
        try:
            protocol.connection_lost(error)
        finally:
            self.sockets.transports[self.fd] = None
            close_descriptor(self.fd)
            self.fd = -1

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_extra_info(self, name):
        """Of what asyncio's know, `peername` and `sockname`; of `socket` only the descriptor may be asked. `held_bytes`: what
        all clients did not take."""
        if name == "held_bytes":
            return self.sockets.held_bytes
        if name == "peername" and self.peer.family:
            return address_as_tuple(&self.peer)
        if self.fd < 0:
            return None
        if name == "socket":
            return self
        asked = socket.socket(fileno=self.fd)
        try:
            return asked.getpeername() if name == "peername" else asked.getsockname() if name == "sockname" else None
        except OSError:
            return None
        finally:
            asked.detach()

    def fileno(self):
        return self.fd
