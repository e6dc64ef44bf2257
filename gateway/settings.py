"""The settings of the gateway. The command fills them in; the gateway reads no file or environment.

Each field's metadata holds its line of documentation (`doc`) and, where there is one, what the
command checks: the range (`at_least`, `at_most`) or the form of an
address (`pattern`, with a group `port`; `shape` is what people are told).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway.listen_address import PATTERN as PATTERN_OF_LISTEN
from gateway.listen_address import SHAPE as SHAPE_OF_LISTEN
from gateway.listen_address import WEBSOCKET_PATH
from notify.links.address import CLUSTER_PATTERN, CLUSTER_SHAPE

MIB = 1024 * 1024
DAY_S = 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    listen: tuple[str, ...] = field(
        default=("mqtt://127.0.0.1:1883",),
        metadata={
            "doc": "Addresses to listen on; port 0 takes a free one.",
            "shape": SHAPE_OF_LISTEN,
            "pattern": PATTERN_OF_LISTEN,
        },
    )
    proxies: tuple[str, ...] = field(
        default=("127.0.0.0/8", "::1/128"),
        metadata={
            "doc": "Networks of trusted proxies, for addresses with ?proxy_protocol=2; others are closed there.",
            "shape": "an IP address or network, as 10.0.0.0/8",
            "pattern": r"[0-9A-Fa-f:.]+(/\d{1,3})?",
        },
    )
    maximum_packet_size_bytes: int = field(
        default=1 * MIB,
        metadata={
            "doc": "Largest packet accepted from a client.",
            "at_least": 1_024,
            "at_most": 268_435_460,
        },
    )
    max_client_id_bytes: int = field(
        default=256,
        metadata={
            "doc": "Longest client identifier, in UTF-8; a client with a longer one is refused.",
            "at_least": 23,
            "at_most": 65_535,
        },
    )
    max_username_bytes: int = field(
        default=1_024,
        metadata={
            "doc": "Longest user name in a CONNECT, in UTF-8; a client with a longer one is refused.",
            "at_least": 1,
            "at_most": 65_535,
        },
    )
    max_user_properties: int = field(
        default=256,
        metadata={
            "doc": "User properties in one packet, or in its will; a client that sends more is refused.",
            "at_least": 1,
        },
    )
    max_filters_per_packet: int = field(
        default=512,
        metadata={
            "doc": "Topic filters in one SUBSCRIBE or UNSUBSCRIBE; a client that sends more is disconnected.",
            "at_least": 1,
        },
    )
    max_connections: int = field(
        default=100_000,
        metadata={"doc": "Connections beyond this are refused.", "at_least": 1},
    )
    listener_max_connections: int = field(
        default=0,
        metadata={"doc": "The same limit for each address in `listen`; 0: only max_connections.", "at_least": 0},
    )
    max_connections_per_address: int = field(
        default=0,
        metadata={
            "doc": "Connections from one IP address (IPv6: from one /64 network), those without a CONNECT included; "
            "others are closed. Behind a proxy the client's address counts if the proxy sends it. 0: no limit.",
            "at_least": 0,
        },
    )
    listener_connects_per_s: int = field(
        default=0,
        metadata={
            "doc": "Connections that each address in `listen` accepts in a second; others wait. 0: no limit.",
            "at_least": 0,
        },
    )
    max_namespaces: int = field(
        default=1_000,
        metadata={
            "doc": "Namespaces with connected clients at a time; 0: only the default one.",
            "at_least": 0,
        },
    )
    connect_timeout_s: int = field(
        default=10,
        metadata={
            "doc": "A connection without a CONNECT by then, TLS and WebSocket handshakes included, is closed.",
            "at_least": 1,
        },
    )
    max_connect_bytes: int = field(
        default=64 * 1024,
        metadata={
            "doc": "Largest CONNECT, will included, and most bytes kept of later packets until its CONNACK.",
            "at_least": 1_024,
            "at_most": 16 * MIB,
        },
    )
    connecting_bytes: int = field(
        default=64 * MIB,
        metadata={
            "doc": "Bytes kept for all connections without a session: parts of packets, TLS and WebSocket handshakes. "
            "Above it, the connection that has been incomplete for longest is closed.",
            "at_least": 1 * MIB,
        },
    )
    incomplete_bytes: int = field(
        default=128 * MIB,
        metadata={
            "doc": "The same limit for connections with a session: parts of incomplete packets.",
            "at_least": 1 * MIB,
        },
    )
    max_keep_alive_s: int = field(
        default=0,
        metadata={
            "doc": "Longest keep alive an MQTT 5 client may ask for; 0 leaves the choice to the client.",
            "at_least": 0,
            "at_most": 65_535,
        },
    )
    receive_maximum: int = field(
        default=1_024,
        metadata={
            "doc": "QoS 1 and 2 messages an MQTT 5 client may have unacknowledged towards the gateway.",
            "at_least": 1,
            "at_most": 65_535,
        },
    )
    max_inflight: int = field(
        default=2_048,
        metadata={
            "doc": "QoS 1 and 2 messages in flight towards an MQTT 3.1.1 client, which has no Receive Maximum.",
            "at_least": 1,
            "at_most": 65_535,
        },
    )
    topic_alias_maximum: int = field(
        default=16,
        metadata={
            "doc": "Topic aliases a client may set on its connection.",
            "at_least": 0,
            "at_most": 65_535,
        },
    )
    topic_alias_bytes: int = field(
        default=65_536,
        metadata={
            "doc": "Bytes of the topic names of all these aliases of a connection.",
            "at_least": 1_024,
        },
    )
    max_topic_aliases_out: int = field(
        default=64,
        metadata={
            "doc": "Topic aliases that the gateway sets towards a client that accepts them; 0: none.",
            "at_least": 0,
            "at_most": 65_535,
        },
    )
    check_payload_format: bool = field(
        default=False,
        metadata={"doc": "Refuse messages whose payload format indicator says UTF-8 and whose payload is not."},
    )
    max_session_expiry_s: int = field(
        default=7 * DAY_S,
        metadata={
            "doc": "Longest session expiry interval; a client that asks for more gets this.",
            "at_least": 0,
            "at_most": 4_294_967_294,
        },
    )
    max_subscriptions_per_session: int = field(
        default=10_000,
        metadata={"doc": "Subscriptions beyond this are refused.", "at_least": 1},
    )
    shared_strategy: Literal["round_robin", "least_in_flight", "sticky"] = field(
        default="round_robin",
        metadata={"doc": "How a new `$share` group assigns messages: in turn, by least in flight, or by topic."},
    )
    shared_strategies: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "The same for new groups of one share name: NAME=STRATEGY.",
            "shape": "NAME=round_robin, NAME=least_in_flight or NAME=sticky",
            "pattern": r"[^/+#]+=(round_robin|least_in_flight|sticky)",
        },
    )
    queue_qos0: bool = field(
        default=False,
        metadata={"doc": "Keep QoS 0 messages for a session that is offline."},
    )
    qos0_lag_messages: int = field(
        default=1_000_000,
        metadata={
            "doc": "A QoS 0 subscriber further behind than this loses messages (counted). Publishers wait for one "
            "that reads fast before it loses any.",
            "at_least": 1,
        },
    )
    write_buffer_bytes: int = field(
        default=1 * MIB,
        metadata={
            "doc": "Unsent bytes per connection; above it, its deliveries wait in the store.",
            "at_least": 1_024,
        },
    )
    max_waiting_bytes: int = field(
        default=1024 * MIB,
        metadata={
            "doc": "Unsent bytes of all clients together; above it, the clients that have been slow for longest are "
            "disconnected. Messages that they have not acknowledged wait for their sessions.",
            "at_least": 1 << 20,
        },
    )
    dollar_topics: bool = field(
        default=True,
        metadata={
            "doc": "Clients may publish to topics that begin with $ and are not among the server's own (docs/mqtt.md).",
        },
    )
    direct_messages: bool = field(
        default=False,
        metadata={
            "doc": "Each client gets what is published to $direct/CLIENT/..., CLIENT being its identifier, whatever it "
            "subscribes to (docs/mqtt.md).",
        },
    )
    sys_interval_s: int = field(
        default=10,
        metadata={"doc": "How often the $SYS topics are published; 0 for never.", "at_least": 0},
    )
    reuse_port: bool = field(
        default=False,
        metadata={"doc": "Let other gateways on this machine listen on the same ports (SO_REUSEPORT)."},
    )
    websocket_origins: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "Sites whose pages may connect by WebSocket; empty: all. Programs other than browsers always may.",
            "shape": "https://HOST[:PORT]",
            "pattern": r"https?://[^\s/]+",
        },
    )
    websocket_paths: tuple[str, ...] = field(
        default=(WEBSOCKET_PATH, "/", "/ws"),
        metadata={
            "doc": "HTTP path of MQTT over WebSocket; other paths are answered with 404.",
            "shape": "/PATH",
            "pattern": r"/[!-~]*",
        },
    )
    websocket_any_subprotocol: bool = field(
        default=False,
        metadata={
            "doc": "Take WebSocket clients that offer mqttv3.1 or no sub-protocol, against [MQTT-6.0.0-3].",
        },
    )
    tls_certificate: Path | None = field(
        default=None,
        metadata={"doc": "PEM file with the certificate of mqtts:// and wss://, and its chain."},
    )
    tls_key: Path | None = field(default=None, metadata={"doc": "PEM file with its private key."})
    tls_client_certificates: Literal["no", "optional", "required"] = field(
        default="no",
        metadata={"doc": "Whether clients present certificates, too."},
    )
    tls_client_ca_file: Path | None = field(
        default=None,
        metadata={"doc": "PEM file of the authorities that issue client certificates."},
    )
    tls_client_crl_file: Path | None = field(
        default=None,
        metadata={"doc": "PEM file of the CRLs of client certificates, one of each authority."},
    )
    tls_client_crl_check: Literal["leaf", "chain"] = field(
        default="leaf",
        metadata={"doc": "Certificates looked up in the CRLs: clients' own, or the whole chain."},
    )
    tls_client_strict: bool = field(
        default=False,
        metadata={"doc": "Accept client certificates only if they follow RFC 5280 strictly (X509_STRICT)."},
    )
    tls_user_name: Literal["cn", "san"] = field(
        default="cn",
        metadata={"doc": "Part of a client certificate that is the user name: common name, or first alternative name."},
    )
    tls_namespace: Literal["no", "o", "ou"] = field(
        default="no",
        metadata={"doc": "Part of a client certificate that names the namespace: organization or unit; `no`: none."},
    )
    store: str | None = field(
        default=None,
        metadata={
            "doc": "Address of the store of `penstock gateway`: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH; of "
            "the stores of a cluster tcp://HOST:PORT,HOST:PORT, or a DNS name of all of them.",
            "shape": CLUSTER_SHAPE,
            "pattern": CLUSTER_PATTERN,
        },
    )
    store_token: str = field(
        default="",
        metadata={"doc": "Token by which the store accepts a gateway; see wire.gateway_token.", "secret": "whole"},
    )
    store_token_file: Path | None = field(
        default=None,
        metadata={"doc": "File that holds that token, in place of `store_token`."},
    )
    store_ca_file: Path | None = field(
        default=None,
        metadata={"doc": "PEM file of the authorities for the certificate of a tls:// store; unset: the system's."},
    )
    store_certificate: Path | None = field(
        default=None,
        metadata={"doc": "PEM file with the certificate that a gateway presents to a tls:// store."},
    )
    store_key: Path | None = field(
        default=None,
        metadata={"doc": "PEM file with the private key of that certificate."},
    )
    store_patience_s: int = field(
        default=10,
        metadata={
            "doc": "A message that the connected store of `penstock gateway` has not confirmed for so long is "
            "refused; without a connection to the store messages wait.",
            "at_least": 1,
        },
    )
    range_cache_bytes: int = field(
        default=32 * MIB,
        metadata={
            "doc": "Cache of messages that a gateway has read from another process, for its other subscribers.",
            "at_least": 1 * MIB,
        },
    )
    drain_clients_per_s: int = field(
        default=1_000,
        metadata={
            "doc": "Clients that a stopping gateway disconnects in a second; more if drain_timeout_s requires it.",
            "at_least": 1,
        },
    )
    drain_timeout_s: int = field(
        default=10,
        metadata={"doc": "Longest time that a stopping gateway takes to disconnect its clients.", "at_least": 0},
    )
    stop_will_delay_s: int = field(
        default=60,
        metadata={
            "doc": "When a gateway stops, its clients' wills wait at least so long for them to reconnect, there or at "
            "another gateway, and are dropped if they do. 0: wills are sent as after a lost connection.",
            "at_least": 0,
            "at_most": 86_400,
        },
    )
    server_reference: str = field(
        default="",
        metadata={
            "doc": "Server Reference for MQTT 5 clients when a gateway stops; empty: none.",
            "shape": "HOST:PORT, several with a space in between",
            "pattern": r"(?:\S+(?: \S+)*)?",
        },
    )
    unix_socket_mode: Literal["0600", "0660"] = field(
        default="0660",
        metadata={"doc": "Mode of unix:// addresses in `listen`: whether their group may connect, too."},
    )
    receipts: Literal["full", "off"] = field(
        default="full",
        metadata={
            "doc": "Whether clients that ask get the positions of their messages: a log_offset grows with the messages "
            "of all users. off: bare acknowledgements only."
        },
    )
