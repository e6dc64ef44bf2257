"""Settings of the quotas."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """Sessions, subscriptions, groups, topics, delayed and retained messages are counted by the store: set these for
    `penstock store`. All other limits are for one gateway process, and the rates for a console too. 0 means none. Those
    of a namespace are for each but the default one, unless that is to have them too."""

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
    user_sessions: int = field(
        default=0,
        metadata={
            "doc": "Sessions of a user, connected or not, over all gateways; 0: any number.",
            "at_least": 0,
        },
    )
    user_subscriptions: int = field(
        default=0,
        metadata={
            "doc": "Subscriptions of a user's sessions, connected or not, over all gateways; 0: any number.",
            "at_least": 0,
        },
    )
    user_groups: int = field(
        default=100,
        metadata={
            "doc": "Consumer groups that a user made and a store has, over all gateways and the SDK; 0: any number.",
            "at_least": 0,
        },
    )
    user_topics: int = field(
        default=0,
        metadata={
            "doc": "Topics that a user was the first to publish to, and that the log has messages of; 0: any number.",
            "at_least": 0,
        },
    )
    user_delayed: int = field(
        default=0,
        metadata={
            "doc": "Delayed messages of a user that are not due yet; 0: any number.",
            "at_least": 0,
        },
    )
    user_retained: int = field(
        default=0,
        metadata={
            "doc": "Topics whose retained message is a user's, over all gateways and the SDK; 0: any number.",
            "at_least": 0,
        },
    )
    user_retained_bytes: int = field(
        default=0,
        metadata={
            "doc": "Bytes of these messages, topic and payload; 0: any number.",
            "at_least": 0,
        },
    )
    namespace_messages_per_s: int = field(
        default=0,
        metadata={"doc": "Messages from all clients of a namespace in a second; 0: any number.", "at_least": 0},
    )
    namespace_bytes_per_s: int = field(
        default=0,
        metadata={
            "doc": "Bytes of PUBLISH packets from a namespace in a second; 0: any number.",
            "at_least": 0,
        },
    )
    namespace_connections: int = field(
        default=0, metadata={"doc": "Clients of a namespace that may be connected; 0: any number.", "at_least": 0}
    )
    namespace_sessions: int = field(
        default=0,
        metadata={
            "doc": "Sessions of a namespace, connected or not, over all gateways; 0: any number.",
            "at_least": 0,
        },
    )
    namespace_subscriptions: int = field(
        default=0,
        metadata={
            "doc": "Subscriptions of a namespace's sessions, connected or not, over all gateways; 0: any number.",
            "at_least": 0,
        },
    )
    namespace_groups: int = field(
        default=0,
        metadata={
            "doc": "Consumer groups of a namespace, by gateways and the SDK; 0: any number.",
            "at_least": 0,
        },
    )
    namespace_topics: int = field(
        default=0,
        metadata={"doc": "Topics of a namespace that the log has messages of; 0: any number.", "at_least": 0},
    )
    namespace_delayed: int = field(
        default=0,
        metadata={"doc": "Delayed messages in a namespace that are not due yet; 0: any number.", "at_least": 0},
    )
    namespace_retained: int = field(
        default=0,
        metadata={
            "doc": "Topics of a namespace with a retained message, over all gateways and the SDK; 0: any number.",
            "at_least": 0,
        },
    )
    namespace_retained_bytes: int = field(
        default=0,
        metadata={"doc": "Bytes of these messages, topic and payload; 0: any number.", "at_least": 0},
    )
    bound_default_namespace: bool = field(
        default=False,
        metadata={"doc": "Whether the bounds of a namespace hold for the default one too, with users or without."},
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
