"""Compiled leaf: messages of a shared subscription that a session was handed and has not acknowledged."""

from libc.stdint cimport uint64_t


cdef class DealtShare:
    """A session's messages of one group, and their acknowledgements, which are merged until the store is told."""

    def __cinit__(self, *args, **kwargs):
        self.in_flight = {}
        self.said = []

    cdef int say_done(self, uint64_t serial, uint64_t queue_offset) except -1:
        if self.number and serial == self.serial and queue_offset == self.first + self.number:
            self.number += 1
            return 0
        if self.number:
            self.said.append((self.serial, self.first, self.number))
        self.serial, self.first, self.number = serial, queue_offset, 1
        return 0

    cdef int settled(self, DealtMessage dealt) except -1:
        """The client has it."""
        dealt.is_settled = True
        self.in_flight.pop(dealt.queue_offset, None)
        self.say_done(dealt.serial, dealt.queue_offset)
        return 0

    def done(self, uint64_t serial, uint64_t queue_offset):
        """One that was not in flight is done with."""
        self.say_done(serial, queue_offset)

    def carry(self, DealtMessage dealt not None):
        """Another way than deal() put it in flight."""
        self.in_flight[dealt.queue_offset] = dealt

    def collect_acks(self):
        """(serial, queue_offset of the first, number) of what is done with and not told so far."""
        if self.number:
            self.said.append((self.serial, self.first, self.number))
            self.number = 0
        said, self.said = self.said, []
        return said


cdef class DealtMessage:
    """A message of a group that was handed to a session, and is in flight; in place of a HeldMessage."""

    is_shared = True

    def __init__(self, DealtShare share not None, uint64_t serial, uint64_t queue_offset, uint64_t log_offset, int qos):
        self.share = share
        self.serial = serial
        self.queue_offset = queue_offset
        self.log_offset = log_offset
        self.qos = qos

    def settle(self):
        """The client has it."""
        if not self.is_settled:
            self.share.settled(self)
            self.share.was_settled(self)
