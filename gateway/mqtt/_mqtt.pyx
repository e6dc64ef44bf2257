"""Compiled leaf: what happens per packet on the way in, and per message on the way out; the clients' sockets. No policy.

A Link is one connection's two byte streams. In: chunks are split into packets; plain PUBLISH, PUBACK and PINGREQ are
dealt with here, everything else goes to `on_packet`. Out: packets are gathered and handed to the transport once a turn.
A Turn is what all connections of one event loop turn share: the batch to be stored, the links to be flushed.
"""

from collections import OrderedDict

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from gateway.mqtt._bounds cimport *
from gateway.mqtt._costs cimport *
from gateway.mqtt._dealt cimport DealtMessage, DealtShare
from gateway.mqtt._held cimport Block, Held, block_of
from gateway.mqtt._inflight cimport Inflight
from gateway.mqtt._publish cimport *
from gateway.mqtt._system cimport *
from gateway.mqtt._tenants cimport Tenant
from lightqueue.queues._queues cimport Queue
from store.errors import StoreError
from store.records._records cimport (
    FLAG_COMPRESSED, FLAG_EXPIRES, FLAG_LIVE_ONLY, FLAG_QOS, FLAG_RETAIN, MOST_TOPIC_LEVELS, Part, RecordBatch, RecordHeader, Records, TYPE_MESSAGE,
    FORM_BITS, MESSAGE_EXPIRY_INTERVAL, REPEATS_BIT, STORED_BIT, TEXT, TOPIC, TWO_TEXTS, USER_PROPERTY, ZERO_OR_ONE, client_id_of, length_prefixed,
    lost_in_front, payload_of, property_codes, topic_of, value_bytes, widened,
)

DONE, BLOCKED, SESSION = 0, NEEDS_MORE, NEEDS_SESSION
BATCH_BYTES = BATCH_LIMIT

include "parts/_scan.pxi"
include "parts/_turn.pxi"
include "parts/_tenants.pxi"
include "parts/_permits.pxi"
include "parts/_reader.pxi"
include "parts/_merge.pxi"
include "parts/_kept.pxi"
include "parts/_taking.pxi"


cdef class Link:
    """Base of a connection. Subclasses give on_packet(first_byte, body), on_plain_answer(kind, id), close_for(reason), misses(number), a transport."""

    cdef readonly Turn turn
    cdef public object transport
    cdef public object session
    cdef public Inflight inflight
    cdef public str client_id           # of the publisher
    cdef public Tenant tenant           # its namespace; None: the default one
    cdef public int version             # 4 or 5; 0 before CONNECT
    cdef public bint closing            # nothing is taken in or sent any more
    cdef public bint waiting            # for its CONNACK to be sent: what comes in is kept until go_on()
    cdef public bint paused             # the transport holds more than its high-water mark
    cdef public uint32_t unread_bytes   # written since then
    cdef public bint behind             # its session has something to send before anything more from its queues
    cdef public bint durable            # the session outlives the connection
    cdef public uint64_t lost           # messages that were to go to it; the next PUBLISH says so
    cdef public bint is_bridge          # of another broker's, as its CONNECT says
    cdef public uint64_t opened_ms      # wall clock; how long older messages were on their way says nothing
    cdef public double last_seen_s
    cdef public float keep_alive_s      # silence after which the client is gone; 0: never
    cdef public uint32_t max_packet_in
    cdef public uint32_t max_packet_out
    cdef public uint16_t alias_limit    # topic aliases that the client takes
    cdef public uint32_t ack_limit      # acknowledgements the client may wait for (receive maximum)
    cdef public uint32_t unsafe_acks, turn_acks     # handed to the turn, and not sent yet; those of this turn
    cdef public bint metered            # what it publishes is paid for with allowances
    cdef public bint throttled          # it has none left: what comes in is kept
    cdef public bint resting            # it brought much at once: what comes in is kept until rest_is_over()
    cdef public bint crowding           # it published to many, and these may not have been sent that so far
    cdef public bint judges_retained    # messages with retain are the full codec's business
    cdef public bint held_for_crowd     # so it waits for that
    cdef public bint rested_for_crowd   # and has more that came in
    cdef public int32_t allowed_messages
    cdef public int64_t allowed_bytes
    cdef public Permits permits         # what is known to be allowed here; None: everything is
    cdef public int fd                  # of a plain socket, to which may be sent directly; -1: only the transport knows how
    cdef size_t unsafe_bytes            # of packets that are sent once they are safe
    cdef bint handed_over               # the transport may hold bytes that have to go first
    cdef bint is_dirty, in_crowd, is_ready
    cdef dict aliases_out               # topic -> the alias that stands for it towards the client
    cdef list chunks                    # to be sent before `out`: blocks that other links send as well
    cdef size_t chunk_bytes
    cdef char *out
    cdef size_t out_size, out_capacity
    cdef char *acks
    cdef size_t acks_size
    cdef size_t acks_capacity
    cdef char *partial
    cdef size_t partial_size
    cdef size_t partial_capacity
    cdef uint32_t below_bytes           # kept for it by the layers between it and its socket
    cdef uint32_t counted_bytes         # of both of these, as the turn knows
    cdef uint8_t counted_open           # whether it had a session then
    cdef bint splitting                 # what is kept is being read

    def __cinit__(self, *args, **kwargs):
        self.max_packet_in = 268435455 + 5
        self.max_packet_out = 0xFFFFFFFF
        self.ack_limit = 65535
        self.fd = -1

    def __init__(self, Turn turn):
        self.turn = turn

    def __dealloc__(self):
        free(self.out)
        free(self.acks)
        free(self.partial)

    # --- in

    def feed(self, const unsigned char[::1] data not None, size_t size):
        self.take_in(<const char *>&data[0], size)

    cdef int take_in(self, const char *data, size_t size) except -1:
        """Take in `size` bytes at the start of `data`, which is free for other use afterwards."""
        cdef size_t used
        self.last_seen_s = self.turn.now_s
        self.turn.bytes_in += size
        if self.closing:
            return 0
        if not self.partial_size:
            used = self.split(data, size)
            if used < size and not self.closing:
                keep(self, data + used, size - used)
        else:
            feed_partial(self, data, size)
        if self.turn.scheduled:
            self.turn.feeds += 1
            if self.turn.feeds >= FEEDS_LIMIT:
                self.turn.owner.end_turn()
        if self.turn.congested:
            self.on_congested()
        return 0

    def go_on(self):
        """Deal with what was kept while waiting."""
        self.waiting = False
        if self.partial_size and not self.closing:
            feed_partial(self, NULL, 0)

    def keep_below(self, uint32_t size_bytes):
        """The layers between it and its socket keep so much for it."""
        self.below_bytes = size_bytes
        if not self.closing:
            count_kept(self)

    def forget_kept(self):
        forget_kept(self)

    @property
    def keeps_bytes(self):
        """Whether something that came in is not dealt with so far."""
        return self.partial_size > 0

    @cython.final
    cdef Py_ssize_t split(self, const char *data, size_t size) except -1:
        """Deal with the whole packets in `data`; returns the bytes they took."""
        cdef size_t at = 0, step
        cdef int length_bytes
        cdef uint32_t remaining
        cdef size_t taken = 0
        if self.held_for_crowd:
            self.rested_for_crowd = True
            return 0
        while at + 2 <= size and not self.closing and not self.waiting and not self.throttled and not self.resting:
            step = take_pubacks(self, data + at, min(size - at, 4 * (PACKETS_AT_ONCE - taken))) if data[at] == 0x40 else 0
            if step:
                taken += step // 4
            else:
                if not self.version and <uint8_t>data[at] != 0x10:
                    self.close_for("no CONNECT")
                    break
                length_bytes = read_varint(data + at + 1, size - at - 1, &remaining)
                if length_bytes <= 0:
                    if length_bytes < 0:
                        self.close_for("malformed")
                    break
                step = 1 + length_bytes + remaining
                if step > self.max_packet_in:
                    if not self.version:
                        note_version(self, data + at + 1 + length_bytes, size - at - 1 - length_bytes)
                    self.close_for("too large", <uint8_t>data[at] >> 4, step)
                    break
                if at + step > size:
                    break
                self.packet(<uint8_t>data[at], data + at + 1 + length_bytes, remaining)
                taken += 1
            at += step
            if taken >= PACKETS_AT_ONCE or self.turn.worked_ns >= WORK_AT_ONCE_NS:
                if at < size and not self.closing:
                    self.on_much()
                break
        return at

    @cython.final
    cdef int packet(self, uint8_t first, const char *body, uint32_t size) except -1:
        cdef uint8_t kind = first >> 4
        self.turn.packets_in += 1
        if self.session is not None:
            if kind == 3 and self.metered:
                self.spend(size)
            if kind == 3 and first & 6 != 6 and self.publish(first, body, size):
                return 0
            if size == 2 and (first == 0x50 or first == 0x62 or first == 0x70) and (body[0] or body[1]):
                self.work(first, body, size, True)
                return 0
            if first == 0x40 and size == 2 and self.inflight.keeps(<uint8_t>body[0] << 8 | <uint8_t>body[1]):
                if not settle_dealt(self, <uint8_t>body[0] << 8 | <uint8_t>body[1]):
                    self.work(first, body, size, True)
                return 0
            if first == 0xC0 and size == 0:
                self.put(b"\xd0\0", 2)
                self.turn.packets_out += 1
                return 0
        self.work(first, body, size, False)
        return 0

    cdef int work(self, uint8_t first, const char *body, uint32_t size, bint is_plain) except -1:
        """Have the session or the rules deal with a packet, and note what that took of this turn."""
        cdef uint64_t began_ns = now_ns()
        if is_plain:
            self.on_plain_answer(first >> 4, <uint8_t>body[0] << 8 | <uint8_t>body[1])
        else:
            self.turn.was_to_crowd = False
            self.on_packet(first, PyBytes_FromStringAndSize(body, size))
            if self.turn.was_to_crowd:
                note_crowding(self)
        self.turn.worked_ns += now_ns() - began_ns
        return 0

    cdef int spend(self, uint32_t size) except -1:
        """Pay for a PUBLISH, which is taken in any case; what comes after it may have to wait."""
        self.allowed_messages -= 1
        self.allowed_bytes -= size
        if self.allowed_messages <= 0 or self.allowed_bytes <= 0:
            self.on_spent()
        return 0

    @cython.final
    cdef int mark_ready(self) except -1:
        self.inflight.blocked = False
        if not self.is_ready:
            self.is_ready = True
            self.turn.ready.append(self)
        self.turn.schedule()
        return 0

    @cython.final
    cdef bint publish(self, uint8_t first, const char *body, uint32_t size) except -1:
        """Take a PUBLISH into the batch. False: it is unusual or wrong, or a duplicate, so it needs the full codec."""
        cdef int qos = first >> 1 & 3
        cdef size_t at, properties_size = 0
        cdef Part topic, client_id, properties = Part(NULL, 0)
        cdef uint8_t flags = qos
        cdef char ack[4]
        cdef char packet_id[5]      # as an attribute of the record: with QoS 2 it must outlive a crash
        cdef Part attributes = Part(NULL, 0)
        if self.turn.has_asked and is_closed_by_settling(self):
            return True
        if first & 1:
            if self.judges_retained:
                return False
            flags |= FLAG_RETAIN
        if size < 2:
            return False
        topic.size = <uint8_t>body[0] << 8 | <uint8_t>body[1]
        topic.data = body + 2
        at = 2 + topic.size + (2 if qos else 0)
        if at > size or not topic_ok(self, &topic) or (self.permits is not None and not self.permits.has(topic, qos, first & 1)):
            return False
        if qos:
            memcpy(ack, b"\x40\2" if qos == 1 else b"\x50\2", 2)
            memcpy(ack + 2, body + at - 2, 2)
            if (ack[2] == 0 and ack[3] == 0) or self.unsafe_acks >= self.ack_limit:
                return False
        elif first & 8:
            return False
        if self.version == 5:
            if not plain_properties(body + at, size - at, self.turn.max_user_properties, &properties, &flags, &at):
                return False
            if self.turn.checks_format and properties.size:
                return False
        if qos == 2:
            if not self.receive(<uint8_t>ack[2] << 8 | <uint8_t>ack[3]):
                return False
            if self.durable:
                memcpy(packet_id, b"\1\2\0", 3)
                packet_id[3], packet_id[4] = ack[3], ack[2]
                attributes = Part(&packet_id[0], 5)
        flags |= self.turn.topic_flags
        utf8_of(self.client_id, &client_id)
        self.turn.batch.add(TYPE_MESSAGE, flags, topic, client_id, attributes, properties, Part(body + at, size - at))
        self.turn.worked_ns += self.turn.weight.message_ns + (size >> BYTES_SHIFT) + (APPLIED_NS if first & 1 or attributes.size else 0)
        if flags & FLAG_EXPIRES:
            self.turn.worked_ns += self.turn.weight.own_ns
        if self.turn.weight.has_crowd and not self.crowding:
            note_crowding(self)
        self.turn.received[qos] += 1
        self.turn.received_bytes += size - at
        if self.tenant is not None:
            self.tenant.count_received(size - at)
        if qos:
            self.expect_ack(ack, 4, True)
        if self.turn.batch.size >= BATCH_LIMIT:
            self.turn.owner.store_batch()
        else:
            self.turn.schedule()
        return True

    cdef bint receive(self, uint16_t packet_id) except -1:
        """Note a QoS 2 publish; False if it is a duplicate, or more than the client may have open."""
        cdef object received = self.session.received
        if packet_id in received or <uint32_t>len(received) >= self.ack_limit:
            return False
        self.session.receive(packet_id)
        return True

    @cython.final
    cdef int expect_ack(self, const char *ack, size_t size, bint counts) except -1:
        if not self.acks_size:
            self.turn.acking.append(self)
        append(&self.acks, &self.acks_size, &self.acks_capacity, ack, size)
        self.unsafe_bytes += size
        self.unsafe_acks += counts
        self.turn_acks += counts
        self.turn.packets_out += 1
        return 0

    def answer_when_safe(self, bytes packet not None, bint counts=False):
        """Have a packet sent once what the batch holds by now is as safe as the flush policy promises.

        `counts`: it acknowledges a PUBLISH, of which the client may have only so many outstanding.
        """
        self.expect_ack(PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet), counts)
        self.turn.schedule()

    def accept_more(self):
        """The window or the buffer has room again: have the session pull."""
        self.mark_ready()

    def collect_acks(self):
        """The acknowledgements that belong to the batch just stored: (their packets, their number)."""
        packets, count = PyBytes_FromStringAndSize(self.acks, self.acks_size), self.turn_acks
        self.acks_size = self.turn_acks = 0
        free(self.acks)
        self.acks = NULL
        self.acks_capacity = 0
        return packets, count

    def send_acks(self, bytes packets not None, uint32_t count, size_t refused_bytes=0):
        cdef bint was_owing = self.is_owing()
        self.unsafe_acks -= count
        self.unsafe_bytes -= PyBytes_GET_SIZE(packets) + refused_bytes
        if was_owing and not self.is_owing():
            self.mark_ready()
        self.put_bytes(packets)

    # --- out

    @cython.final
    cdef int mark_dirty(self) except -1:
        if self.turn.to_crowd:
            if not (self.in_crowd or self.is_dirty):
                self.in_crowd = True
                self.turn.crowd.append(self)
                self.turn.crowd_put += 1
        elif not self.is_dirty:
            self.is_dirty = True
            self.turn.dirty.append(self)
        if not self.turn.ending:
            self.turn.schedule()
        return 0

    cdef int put(self, const char *data, size_t size) except -1:
        if self.closing or not size:
            return 0
        append(&self.out, &self.out_size, &self.out_capacity, data, size)
        return self.mark_dirty()

    def write(self, bytes data not None):
        """Send a packet at the end of the turn, in order with everything else."""
        self.turn.packets_out += 1
        self.put_bytes(data)

    cdef int put_bytes(self, bytes data) except -1:
        if PyBytes_GET_SIZE(data) < SHARED_BYTES:
            return self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return 0 if self.closing else self.share(block_of(data, NULL, PyBytes_GET_SIZE(data)))

    cdef int share(self, Block block) except -1:
        """Send a block that other links send as well, without copying it."""
        if self.chunks is None:
            self.chunks = []
        if self.out_size:
            self.chunks.append(block_of(PyBytes_FromStringAndSize(self.out, self.out_size), NULL, self.out_size))
            self.chunk_bytes += self.out_size
            self.out_size = 0
        self.chunks.append(block)
        self.chunk_bytes += block.size
        return self.mark_dirty()

    cpdef bint is_full(self) noexcept:      # what is gathered has to be flushed before more is delivered
        return self.out_size + self.chunk_bytes >= GATHERED_LIMIT

    cpdef bint is_owing(self) noexcept:     # so much waits to be safe that no more is delivered before
        return self.unsafe_bytes >= GATHERED_LIMIT

    def flush(self):
        """Send everything gathered: straight to the socket while it takes it, the rest through the transport."""
        cdef bint was_paused = self.paused
        cdef uint64_t sent_before = self.turn.sent_bytes
        self.is_dirty = False
        chunks, self.chunks, self.chunk_bytes = self.chunks, None, 0
        if self.transport is not None and not self.closing:
            if chunks is not None:
                for chunk in chunks:
                    self.emit((<Block>chunk).at, (<Block>chunk).size, chunk)
            if self.out_size:
                self.emit(self.out, self.out_size, None)
        self.out_size = 0
        free(self.out)
        self.out = NULL
        self.out_capacity = 0
        if was_paused and self.turn.sent_bytes > sent_before:
            self.written_while_paused(self.turn.sent_bytes - sent_before)

    cdef int emit(self, const char *data, size_t size, Block block) except -1:
        """Send `data`, which may be a Block; much that the socket does not take of that is held by reference."""
        cdef ssize_t sent = 0
        self.turn.sent_bytes += size
        if self.fd >= 0 and not (self.handed_over and self.transport.get_write_buffer_size()):
            with nogil:
                sent = send(self.fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if <size_t>sent == size:
                return 0
            sent = max(sent, 0)             # a full buffer, or an error that the transport will meet as well
        self.handed_over = True
        if block is not None and size - sent >= SHARED_BYTES and isinstance(self.transport, SocketTransport):
            (<SocketTransport>self.transport).hold(block, sent)
        else:
            self.transport.write(PyBytes_FromStringAndSize(data + sent, size - sent))
        return 0

    def deliver(self, list readers not None, list ranges not None, uint64_t safe, uint64_t stop=<uint64_t>-1):
        """Encode what the ranges of some readers hold before log_offset `stop`, merged by log_offset, each message once; the
        readers move on.

        BLOCKED: the window or the buffer is full. SESSION: the next message is QoS 2, which the session sends itself.
        DONE: the ranges were used up, or one whose reader has more to read. QoS 2 messages at or after log_offset `safe` wait.
        """
        return deliver_to(self, readers, ranges, safe, stop)

    def encode_publish(self, Records records not None, Py_ssize_t i, int qos, uint16_t packet_id, bint dup, bint retain,
                       tuple subscription_ids not None, bint is_new=True):
        """A PUBLISH for a record under a packet identifier that the session chose; None if it is expired or too large."""
        cdef int n = len(subscription_ids)
        cdef bint named = True
        cdef uint16_t alias = 0
        cdef const RecordHeader *record = records.items[i]
        cdef size_t size, hidden = hidden_from(self, record)
        cdef uint32_t *ids = <uint32_t *>malloc((n + 1) * sizeof(uint32_t))
        if ids == NULL:
            raise MemoryError
        try:
            for k in range(n):
                ids[k] = subscription_ids[k]
            if fits(self, record, qos, n, ids, dup, is_new) != 0:
                return None
            told = telling(self, &record, qos, ids, n) if self.lost else None
            size = publish_size(record, hidden, qos, self.version, ids, n)
            if self.alias_limit and not dup:
                alias = alias_of(self, record, size, not self.durable, &named)
                size = publish_size(record, hidden, qos, self.version, ids, n, alias, named)
            packet = PyBytes_FromStringAndSize(NULL, size)
            write_publish(PyBytes_AS_STRING(packet), record, hidden, qos, packet_id, dup, retain, self.version, ids, n,
                          self.turn.now_ms, alias, named)
        finally:
            free(ids)
        self.turn.sent[qos] += 1
        self.turn.sent_payload_bytes += record.payload_length
        if hidden:
            self.tenant.gave(1, record.payload_length)
        if not (dup or retain) and record.timestamp_ms >= self.opened_ms:
            self.turn.delivered_after(record.timestamp_ms, 1)
        return packet

include "parts/_lost.pxi"
include "parts/_delivering.pxi"
include "parts/_fan_out.pxi"
include "parts/_dealing.pxi"
include "parts/_sockets.pxi"
include "parts/_moving.pxi"
