# The bounds of _mqtt.pyx, and the outcomes of deliver().

cdef enum:
    BATCH_LIMIT = 1 << 20           # a turn's batch is stored early once it is this large (bytes)
    BATCH_ROOM_BYTES = 64 << 10     # that it has at most when it begins
    LIVE_TOPICS_LIMIT = 100_000     # topics of which a turn knows whether they are live-only
    REMEMBERED_TOPIC_BYTES = 512    # a longer topic name is kept in no table: clients could fill these with 64 KB each
    PACKETS_AT_ONCE = 8_192         # that one link may bring before others have their turn
    WORK_AT_ONCE_NS = 1_000_000     # that all links may take of one turn; a link deals with one packet at least
    LONG_NS = 2_000_000             # what came in took longer: a topic was met that thousands of filters match
    TURN_NS = 3_000_000             # so long after a turn began links send what they gathered,
    SENT_AT_ONCE_NS = 500_000       # but for so long in any case, before the loop does something else
    CROWD = 32                      # more readers are a crowd: they are sent what they get after all others
    CROWD_TURN_NS = 2_000_000       # so long after a turn began a crowd is sent to,
    CROWD_AT_ONCE_NS = 500_000      # but for so long in any case
    SENT_OF_CROWD = 4_096           # of those that were sent to so many stay in the list at most
    FAN_OUT_NS = 1_000_000          # that a range takes for readers that do not share; what is left of them pulls later
    SEEN_TOPICS = 1 << 16           # of which it is known what a message to them takes (a power of two)
    FEEDS_LIMIT = 16                # a turn is ended early once this many chunks have come in
    AT_ONCE_MS = 1_000              # for so long a message that expires after 0 s goes to those who are there
    ALIAS_BYTES = 3                 # that a topic alias takes in a packet
    SHARED_BYTES = 256 << 10        # payloads from here on are sent from one copy to all who get them
    GATHERED_LIMIT = 1 << 20        # a link that has gathered so much to send is flushed before it gets more
    NEEDS_MORE = 1                  # outcomes of deliver()
    NEEDS_SESSION = 2
