"""`python -m tests.bench.probe PORT`: what one message takes there and back, 200 times a second, until its input ends.

Each line of its input begins another period, and has the last one's figures printed: p50 and p99 in ms. It is a process
of its own so that nothing but the server and the machine delays it.
"""

from __future__ import annotations

import select
import socket
import sys
import time

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest

TOPIC = "probe/of/latency"
PERIOD_S = 0.005


def client(port: int, client_id: str) -> socket.socket:
    each = socket.create_connection(("127.0.0.1", port))
    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    each.sendall(encode(Connect(client_id, 4, keep_alive_s=0), 4))
    each.recv(4, socket.MSG_WAITALL)
    return each


def main() -> None:
    port = int(sys.argv[1])
    publisher, subscriber = client(port, "probe-publisher"), client(port, "probe-subscriber")
    subscriber.sendall(encode(Subscribe(1, (SubscriptionRequest(TOPIC, QoS.AT_MOST_ONCE),)), 4))
    subscriber.recv(5, socket.MSG_WAITALL)
    message = encode(Publish(TOPIC, b"x" * 50), 4)
    took_ms: list[float] = []
    while True:
        started_s = time.perf_counter()
        publisher.sendall(message)
        subscriber.recv(len(message), socket.MSG_WAITALL)
        took_ms.append((time.perf_counter() - started_s) * 1000)
        pause_s = max(0.0, started_s + PERIOD_S - time.perf_counter())
        if select.select([sys.stdin], [], [], pause_s)[0]:
            if not sys.stdin.readline():
                return
            took_ms.sort()
            print(f"{took_ms[len(took_ms) // 2]:.2f} {took_ms[len(took_ms) * 99 // 100]:.2f}", flush=True)
            took_ms = []


if __name__ == "__main__":
    main()
