# Part of _queues.pyx: what applying records costs, in units of some 40 ns, so that a pass can end before it takes long.

from cpython.list cimport PyList_GET_SIZE

cdef enum:
    WORK_CHANGE = 128               # a change of state: of a session, a group or a peer
    WORK_KEPT = 48                  # a message that is retained or has an attribute that changes state
    WORK_LOOK_UP = 64               # a topic whose queue or whose filters are looked up
    WORK_QUEUE = 2                  # one more queue of a message
    QUEUES_OF_A_MESSAGE = 8         # so many are in the one unit that each message costs

cdef extern from *:
    """
    #define NO_BOUND UINT64_MAX
    """
    const uint64_t NO_BOUND


cdef inline uint64_t work_of(list filters) noexcept:
    """Of a message that goes to the queues of these filters."""
    cdef Py_ssize_t queues = PyList_GET_SIZE(filters)
    return 1 if queues <= QUEUES_OF_A_MESSAGE else 1 + WORK_QUEUE * <uint64_t>(queues - QUEUES_OF_A_MESSAGE)
