"""Settings of the quotas."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """Every limit but that of groups, which a store counts, is for one gateway process; 0 means none."""

    client_messages_per_s: int = field(
        default=0, metadata={"doc": "Messages that a client may publish in a second; 0: any number.", "at_least": 0}
    )
    client_bytes_per_s: int = field(
        default=0, metadata={"doc": "Bytes of PUBLISH packets from a client in a second; 0: any number.", "at_least": 0}
    )
    user_messages_per_s: int = field(
        default=0, metadata={"doc": "Messages from all clients of a user in a second; 0: any number.", "at_least": 0}
    )
    user_bytes_per_s: int = field(
        default=0,
        metadata={"doc": "Bytes of PUBLISH packets from all clients of a user in a second; 0: any.", "at_least": 0},
    )
    burst_ms: int = field(
        default=1_000,
        metadata={"doc": "What was not used is kept for so long, and may come at once.", "at_least": 100},
    )
    user_connections: int = field(
        default=0, metadata={"doc": "Clients of a user that may be connected; 0: any number.", "at_least": 0}
    )
    user_subscriptions: int = field(
        default=0,
        metadata={"doc": "Subscriptions of all connected clients of a user; 0: any number.", "at_least": 0},
    )
    user_groups: int = field(
        default=100,
        metadata={
            "doc": "Consumer groups that a user made and a store has, over all gateways and the SDK; 0: any number.",
            "at_least": 0,
        },
    )
    user_retained: int = field(
        default=0,
        metadata={
            "doc": "Topics with a retained message of a user's (of a client's without a user), as far as this process "
            "has seen them set; 0: any number.",
            "at_least": 0,
        },
    )

    client_waiting_bytes: int = field(
        default=0,
        metadata={
            "doc": "Bytes sent to a client and not taken, before it gets no more; 0: gateway.write_buffer_bytes.",
            "at_least": 0,
        },
    )
    user_waiting_bytes: int = field(
        default=0,
        metadata={
            "doc": "The same of all clients of a user; who comes to leave more is closed (0x97), and what was not "
            "acknowledged waits for its session; 0: any number.",
            "at_least": 0,
        },
    )
