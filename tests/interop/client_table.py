"""Which clients are tried over which transports with which versions of MQTT; docs/clients.md shows the same."""

from __future__ import annotations

from dataclasses import dataclass

TRANSPORTS = {"mqtt": "TCP", "mqtts": "TLS", "ws": "WebSocket", "wss": "WebSocket, TLS", "unix": "Unix socket"}
VERSIONS = {4: "3.1.1", 5: "5"}


@dataclass(frozen=True)
class Row:
    name: str
    transports: tuple[str, ...]
    versions: tuple[int, ...] = (4, 5)


ROWS = (
    Row("paho-mqtt", ("mqtt", "mqtts", "ws", "wss", "unix")),
    Row("mosquitto_pub, mosquitto_sub", ("mqtt", "mqtts", "unix")),
    Row("MQTT.js in Node.js", ("mqtt", "mqtts", "ws", "wss", "unix")),
    Row("MQTT.js in Chromium", ("ws", "wss")),
    Row("gmqtt", ("mqtt", "mqtts")),
    Row("amqtt", ("mqtt", "mqtts", "ws", "wss"), (4,)),
)


def table() -> str:
    lines = [
        "| client | " + " | ".join(TRANSPORTS.values()) + " |",
        "|---|" + "---|" * len(TRANSPORTS),
    ]
    for row in ROWS:
        versions = ", ".join(VERSIONS[each] for each in row.versions)
        cells = [versions if transport in row.transports else "" for transport in TRANSPORTS]
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
