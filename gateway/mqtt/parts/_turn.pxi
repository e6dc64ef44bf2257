# The part of _mqtt.pyx that all connections of one event loop turn share, and what is counted there.

cdef enum:
    BUCKETS = 14

cdef uint64_t[BUCKETS - 1] BOUNDS_MS = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000]
DELIVERY_BOUNDS_MS = tuple([bound for bound in BOUNDS_MS])


cdef struct Weight:
    uint32_t message_ns             # that one more message takes of a turn; 0: it is not known
    uint32_t own_ns                 # that it takes besides if it is encoded for each of its readers
    bint has_crowd                  # it goes to more than CROWD readers


cdef struct SeenTopic:
    uint64_t hashed                 # by Python, whose key each process draws
    uint32_t epoch
    Weight weight


@cython.final
cdef class Turn:
    """What the connections of one turn share.

    What it calls is its owner's (gateway/mqtt/turn_owner.py). What it has to know of topics, `queues` says, a StoreQueues
    (notify/api.py); None: nothing is known.
    """

    cdef readonly RecordBatch batch
    cdef readonly list acking           # links with acknowledgements for this batch
    cdef readonly list dirty            # links with bytes to send
    cdef list crowd                     # links with bytes that many others get as well: they are sent after all others
    cdef Py_ssize_t crowd_at            # so many of these were sent to
    cdef readonly uint64_t crowd_put    # so many were put there so far,
    cdef uint64_t crowd_sent            # so many were sent to, in this order,
    cdef public uint64_t crowd_awaited  # and for so many the publisher waits that has waited longest
    cdef bint to_crowd                  # what is put into links now goes to many
    cdef readonly list crowding         # links that published to many since collect_crowding()
    cdef bint was_to_crowd              # so did one by expect()
    cdef readonly list ready            # links whose session can take more, or has acknowledgements to record
    cdef object owner                   # a TurnOwner
    cdef public bint scheduled
    cdef public bint was_long           # a turn was, that did not begin with a look at sockets: they are not looked at once
    cdef readonly bint unsent           # some links have not sent so far what they gathered in a turn that is over
    cdef public bint owes_look          # for that reason: it comes before another such turn
    cdef bint gathering                 # Sockets is reading, and ends the turn itself
    cdef public bint has_asked          # somebody asked for what must count before any message that is read from here on
    cdef public bint congested          # the store has more to do than it can: whoever sends has to wait
    cdef readonly bint ending           # what is put into links from here on is sent before the turn is over
    cdef public uint32_t permit_epoch   # what links know of permissions is of this epoch, or is forgotten
    cdef public uint32_t max_user_properties    # of one packet
    cdef uint64_t worked_ns             # that this turn's packets took, or will take of the store
    cdef readonly bint is_long          # what came in took so much that delivering it had better wait for the next turn
    cdef uint64_t turns                 # so far
    cdef uint64_t began_ns              # when the last one did
    cdef object weigh                   # says to which queues a topic's messages go; None: it is not known here
    cdef public uint32_t epoch          # of who receives what
    cdef Weight weight                  # of one more message to the topic checked last
    cdef uint32_t topic_epoch           # as of which it was weighed
    cdef SeenTopic *seen                # by their hash; NULL: none so far
    cdef public bint checks_format      # payloads are to be what their payload format indicator says
    cdef uint32_t feeds                 # chunks taken in since there is something to end the turn for
    cdef public double now_s            # coarse clock of the loop, seconds
    cdef public uint64_t now_ms         # Unix time by the store's clock, for message expiry
    cdef readonly uint64_t received[3]  # messages by QoS
    cdef readonly uint64_t received_bytes       # of their payloads
    cdef readonly uint64_t sent[3]
    cdef readonly uint64_t sent_payload_bytes
    cdef readonly uint64_t packets_in   # of every kind
    cdef readonly uint64_t packets_out
    cdef readonly uint64_t bytes_in     # on the network
    cdef readonly uint64_t sent_bytes
    cdef public uint64_t acknowledged   # QoS 1 and 2 messages, by who got them
    cdef readonly uint64_t expired
    cdef readonly uint64_t too_large
    cdef readonly uint64_t unreadable           # compressed, and nobody could decompress it
    cdef public uint64_t lost                   # in damaged parts of the log, in front of what was delivered
    cdef readonly uint64_t inflight     # messages that clients have not acknowledged, when overdue() was last called
    cdef uint64_t delivered[BUCKETS]    # messages by how long they were on their way; the last: longer than all bounds
    cdef uint64_t delivery_ms           # all of that together
    cdef uint64_t stored_ms             # what delivered_after() was asked last, at what time, and what came of it
    cdef uint64_t asked_ms
    cdef uint64_t age_ms
    cdef int bucket
    cdef char topic[256]                # the topic name checked last
    cdef size_t topic_size
    cdef uint8_t topic_flags            # what its messages have in their flags
    cdef object live_only               # says of a topic whether its messages go to no stored queue; None: no topic's do
    cdef dict live_topics               # topic -> what live_only said
    cdef char *named                    # room for a topic of a namespace as it is in the log (_tenants.pxi)
    cdef bytes prefixed                 # the prefix that is there
    cdef uint64_t kept[2]               # bytes of packets that are not whole, of links without and with a session
    cdef tuple incomplete               # those links, the oldest first
    cdef public uint64_t connecting_limit       # for links without a session
    cdef public uint64_t incomplete_limit       # for links with one

    def __init__(self, owner, queues=None):
        self.batch = RecordBatch()
        self.acking = []
        self.dirty = []
        self.crowd = []
        self.crowding = []
        self.ready = []
        self.owner = owner
        if queues is not None:
            self.live_only, self.weigh = queues.is_live_only, queues.weigh
        self.live_topics = {}
        self.max_user_properties = 0xFFFFFFFF
        self.incomplete = (OrderedDict(), OrderedDict())
        self.connecting_limit = self.incomplete_limit = 1 << 62

    def __dealloc__(self):
        free(self.named)
        free(self.seen)

    cdef int schedule(self) except -1:
        if not self.scheduled:
            self.scheduled = True
            if not self.gathering:
                self.owner.wake()
        return 0

    cdef int count_kept(self, Link link, bint is_open, uint32_t kept) except -1:
        """`link` keeps so many bytes of packets that are not whole."""
        self.kept[link.counted_open] -= link.counted_bytes
        self.kept[is_open] += kept
        if link.counted_bytes and (not kept or is_open != link.counted_open):
            del self.incomplete[link.counted_open][link]
        if kept and (not link.counted_bytes or is_open != link.counted_open):
            self.incomplete[is_open][link] = None
        link.counted_bytes, link.counted_open = kept, is_open
        if self.kept[is_open] > (self.incomplete_limit if is_open else self.connecting_limit):
            self.owner.shed_incomplete(is_open)
        return 0

    def kept_bytes(self, bint is_open):
        """Of packets that are not whole, of links with a session or without."""
        return self.kept[is_open]

    def oldest_incomplete(self, bint is_open):
        """The link, with a session or without, whose packet has not been whole for the longest; None: there is none."""
        return next(iter(self.incomplete[is_open]), None)

    cpdef int settle_asked(self) except -1:
        """Before a message is taken into the batch: what was asked for until now takes effect. It counts as work."""
        cdef uint64_t began_ns
        if self.has_asked:
            began_ns = now_ns()
            self.has_asked = False
            self.owner.settle()
            self.worked_ns += now_ns() - began_ns
        return 0

    def request(self):
        """Have the turn ended soon."""
        self.schedule()

    def count_received(self, int qos, size_t size):
        """A PUBLISH that came through the full codec."""
        self.received[qos] += 1
        self.received_bytes += size

    def count_sent(self, int qos, size_t size):
        """A PUBLISH that was not made from a record."""
        self.sent[qos] += 1
        self.sent_payload_bytes += size

    cdef void delivered_after(self, uint64_t stored_ms, uint64_t count) noexcept:
        """Messages that the store has had since then are handed on now. Messages come in bursts of one age."""
        cdef int i = 0
        if stored_ms != self.stored_ms or self.now_ms != self.asked_ms:
            self.stored_ms, self.asked_ms = stored_ms, self.now_ms
            self.age_ms = self.now_ms - stored_ms if self.now_ms > stored_ms else 0     # the store's clock may be ahead
            while i < BUCKETS - 1 and self.age_ms > BOUNDS_MS[i]:
                i += 1
            self.bucket = i
        self.delivered[self.bucket] += count
        self.delivery_ms += count * self.age_ms

    cdef void delivered_range(self, Records records, uint64_t count) noexcept:
        """The same for all that a range holds, each so many times. Most ranges are of one append, so of one age."""
        cdef Py_ssize_t i, last = records.count - 1
        if records.items[0].timestamp_ms == records.items[last].timestamp_ms:
            self.delivered_after(records.items[0].timestamp_ms, count * records.count)
            return
        for i in range(records.count):
            self.delivered_after(records.items[i].timestamp_ms, count)

    def delivery_times(self):
        """(messages that were on their way for so long, for each of DELIVERY_BOUNDS_MS and longer; their sum in ms)."""
        return list(self.delivered), self.delivery_ms

    def start_batch(self):
        """Swap in an empty batch; returns the full one and the links that wait for it.

        It has room for as much as the last one, so that it is not copied as it grows.
        """
        cdef RecordBatch full = self.batch
        if full.size:
            self.batch = RecordBatch()
            self.batch.grow(min(full.size, BATCH_ROOM_BYTES))
        acking, self.acking = self.acking, []
        return full, acking

    def begin(self):
        """A new turn: what comes in from here on has to be scheduled again."""
        self.scheduled = False
        self.ending = True
        self.feeds = 0
        self.is_long = self.worked_ns >= LONG_NS
        self.worked_ns = 0
        self.began_ns = now_ns()
        self.turns += 1

    @property
    def has_worked_enough(self):
        """What is left of what came in is for a later turn."""
        return self.worked_ns >= WORK_AT_ONCE_NS

    def send(self):
        """Have links send what they gathered, one after another, for some time. What is left is `unsent`: sockets are not
        looked at before that was sent as well, by calling this again. A crowd comes last, and nobody waits for it."""
        cdef uint64_t began_ns = now_ns()
        cdef uint64_t ends_ns = max(self.began_ns + TURN_NS, began_ns + SENT_AT_ONCE_NS)
        cdef Py_ssize_t at = 0
        cdef Link link
        self.ending = False
        dirty, self.dirty = self.dirty, []
        for link in dirty:
            link.flush()
            at += 1
            if now_ns() >= ends_ns:
                break
        self.unsent = at < len(dirty)
        if self.unsent:
            self.dirty = dirty[at:] + self.dirty
        if self.crowd:
            self.send_to_crowd(max(self.began_ns + CROWD_TURN_NS, began_ns + CROWD_AT_ONCE_NS))

    cdef int send_to_crowd(self, uint64_t ends_ns) except -1:
        cdef Link link
        while self.crowd_at < len(self.crowd):
            link = <Link>self.crowd[self.crowd_at]
            self.crowd_at += 1
            self.crowd_sent += 1
            link.in_crowd = False
            link.flush()
            if now_ns() >= ends_ns:
                break
        if self.crowd_at == len(self.crowd) or self.crowd_at >= SENT_OF_CROWD:
            del self.crowd[:self.crowd_at]
            self.crowd_at = 0
        return 0

    @property
    def crowded(self):
        """Much is left to be sent to many. Others are served meanwhile, but who brought that waits."""
        return self.crowd_at < len(self.crowd)

    @property
    def crowd_is_served(self):
        """So many were sent to as were awaited."""
        return self.crowd_sent >= self.crowd_awaited

    def wake_up(self):
        """Have what is unsent sent soon."""
        self.owner.wake()

    def collect_crowding(self):
        """The links that published to many, of which this did not tell so far."""
        crowding, self.crowding = self.crowding, []
        return crowding

    def collect_ready(self):
        cdef Link link
        ready, self.ready = self.ready, []
        for link in ready:
            link.is_ready = False
        return ready

    def counters(self):
        return {"received": list(self.received), "received_bytes": self.received_bytes, "sent": list(self.sent),
                "sent_payload_bytes": self.sent_payload_bytes, "packets_in": self.packets_in,
                "packets_out": self.packets_out, "bytes_in": self.bytes_in, "sent_bytes": self.sent_bytes,
                "expired": self.expired, "too_large": self.too_large, "unreadable": self.unreadable, "lost": self.lost,
                "inflight": self.inflight, "acknowledged": self.acknowledged}

    cdef bint topic_known(self, const char *topic, size_t size) noexcept:
        return (size == self.topic_size and size and self.topic_epoch == self.epoch
                and memcmp(topic, self.topic, size) == 0)

    cdef int remember_topic(self, const char *topic, size_t size) except -1:
        cdef bytes name = topic[:size]
        self.topic_flags = self.flags_of(name) if self.live_only is not None else 0
        self.weight = self.cost_of(name)
        self.topic_epoch = self.epoch
        self.topic_size = 0
        if size <= sizeof(self.topic):
            memcpy(self.topic, topic, size)
            self.topic_size = size
        return 0

    cdef int flags_of(self, bytes topic) except -1:
        """Asked once per topic; as publishers could name any number of them, what was learnt is forgotten now and then."""
        if len(topic) > REMEMBERED_TOPIC_BYTES:
            return FLAG_LIVE_ONLY if self.live_only(topic) else 0
        live = self.live_topics.get(topic)
        if live is None:
            if len(self.live_topics) >= LIVE_TOPICS_LIMIT:
                self.live_topics.clear()
            live = self.live_topics[topic] = self.live_only(topic)
        return FLAG_LIVE_ONLY if live else 0

    cdef Weight cost_of(self, bytes topic) except *:
        """What one more message to a topic takes of a turn. What the topic itself takes, the first time, counts at once."""
        cdef uint64_t hashed = <uint64_t>hash(topic)
        cdef SeenTopic *seen
        if self.seen == NULL:
            self.seen = <SeenTopic *>calloc(SEEN_TOPICS, sizeof(SeenTopic))
            if self.seen == NULL:
                raise MemoryError
        seen = self.seen + (hashed & (SEEN_TOPICS - 1))
        if seen.hashed != hashed or seen.epoch != self.epoch or not seen.weight.message_ns:
            seen.weight = self.weighed(topic)
            seen.hashed, seen.epoch = hashed, self.epoch
        return seen.weight

    cdef Weight weighed(self, bytes topic) except *:
        cdef Weight weight = Weight(MESSAGE_NS, 0, False)
        cdef uint64_t began_ns
        if self.weigh is None or self.topic_flags:
            self.worked_ns += NEW_TOPIC_NS
            return weight
        began_ns = now_ns()
        try:
            queues, read = self.weigh(topic)
            weight = weight_of(queues, read)
        except StoreError:      # it cannot be read: the append meets that as well, and it is dealt with there
            pass
        self.worked_ns += now_ns() - began_ns
        return weight

    def add_work(self, uint64_t took_ns):
        """What the layers below a link took counts as well."""
        self.worked_ns += took_ns

    def expect(self, bytes topic not None, size_t size):
        """A message that did not come through publish() is in the batch: what it takes counts as well."""
        self.topic_size = 0
        self.topic_flags = self.flags_of(topic) if self.live_only is not None else 0
        self.weight = self.cost_of(topic)
        self.worked_ns += self.weight.message_ns + self.weight.own_ns + (size >> BYTES_SHIFT) + APPLIED_NS
        self.was_to_crowd = self.weight.has_crowd


cdef uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef bint is_closed_by_settling(Link link) except -1:
    """Have what was asked for until now take effect, before a message of the link's is taken in."""
    link.turn.settle_asked()
    return link.closing
