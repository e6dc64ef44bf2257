# What things take of a turn, as `python -m tests.bench.costs` measured it (ns; ADR 61).

cdef enum:
    MESSAGE_NS = 24                 # a message that comes in: 23 to 24; storing it, 37 to 56 more, is not counted
    BYTES_SHIFT = 5                 # one for 32 bytes, which take 7 to 27: 16 chunks of 256 KiB end a turn, whatever they weigh
    QUEUE_NS = 15                   # an entry in one more queue, behind another message's: 12 to 16
    NEAR_QUEUES = 1_024             # of so many; in each further one
    FAR_QUEUE_NS = 100              # as after other work, when a queue is not at hand: 129 of 5,000, behind another message 22
    OWN_NS = 45                     # a packet for one reader: 40 to 45, if the message expires 32
    APPLIED_NS = 5_000              # a message that is retained 3,500 to 3,800, delayed 1,200, and it is appended again when it is due
    NEW_TOPIC_NS = 8_000            # a topic that the store finds neither in memory nor in the index: two look-ups, 7,000
    LOST_NS = 60_000                # a socket whose session is kept with ten subscriptions: 57,000; in a group 20,000, else 5,000 to 8,000
    WEIGHED_QUEUES = 512            # of which it is looked at who reads them; of more one in a few
    # A reader that shares its packets with others takes nothing for a message. It takes 90 of each turn, and a send.
