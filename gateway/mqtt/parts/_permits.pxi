# The part of _mqtt.pyx that knows what a client may publish, once somebody has found it out.

cdef enum:
    PERMITS_LIMIT = 256     # topics of REMEMBERED_TOPIC_BYTES at most that are remembered for one connection


@cython.final
cdef class Permits:
    """Topics that a client may publish to: a bit for each QoS, and again for each with retain."""

    cdef Turn turn
    cdef uint32_t epoch         # the turn's when these were found out
    cdef dict topics
    cdef bytes last_topic       # that was asked for, and its bits
    cdef uint8_t last_bits

    def __init__(self, Turn turn not None):
        self.turn = turn
        self.topics = {}
        self.epoch = turn.permit_epoch

    cdef bint has(self, Part topic, int qos, bint retain) except -1:
        """Whether it is known that this may be published; if not, somebody has to find out."""
        cdef uint8_t wanted = 1 << (qos + 3 * retain)
        if self.epoch != self.turn.permit_epoch or topic.size > REMEMBERED_TOPIC_BYTES:
            return False
        if (self.last_topic is not None and PyBytes_GET_SIZE(self.last_topic) == <Py_ssize_t>topic.size
                and memcmp(PyBytes_AS_STRING(self.last_topic), topic.data, topic.size) == 0):
            return self.last_bits & wanted != 0
        name = PyBytes_FromStringAndSize(topic.data, topic.size)
        bits = self.topics.get(name)
        if bits is None:
            return False
        self.last_topic = name
        self.last_bits = bits
        return self.last_bits & wanted != 0

    def allow(self, bytes topic not None, int qos, bint retain):
        """Whether it is known that this may be published."""
        return self.has(Part(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)), qos, retain)

    def add(self, bytes topic not None, int qos, bint retain):
        """Remember that this may be published, at this QoS and below; with `retain` only retained, else only not."""
        if len(topic) > REMEMBERED_TOPIC_BYTES:
            return                  # it is found out each time
        if self.epoch != self.turn.permit_epoch or len(self.topics) >= PERMITS_LIMIT:
            self.topics = {}
            self.epoch = self.turn.permit_epoch
        self.topics[topic] = self.topics.get(topic, 0) | ((2 << qos) - 1) << (3 * retain)
        self.last_topic = None

    def drop(self, bytes topic not None):
        """Have it found out again."""
        self.topics.pop(topic, None)
        self.last_topic = None
