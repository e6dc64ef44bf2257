"""published = delivered + expired + waiting + refused, by the figures that the process exports, at every moment."""

from collections.abc import Mapping

from gateway.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from gateway.mqtt.reason_codes import ReasonCode
from gateway.observe.metrics import read_steps
from store.figures import Times, joined
from tests.support.mqtt_bench import Bench, Client
from tests.unit.conftest import StartBench

MESSAGES = 30


def figures(bench: Bench) -> dict[str, float]:
    """By name and, where there is one, label."""
    bench.pass_time(1)
    for _ in range(2):  # the first ends a count that was begun before
        bench.store.tick()
    found: dict[str, float] = {}
    for figure, value in joined(read_steps(bench.broker, bench.hub)):
        if isinstance(value, Mapping):
            numbers = {label: number for label, number in value.items() if not isinstance(number, Times)}
            found |= {f"{figure.name} {label}": number for label, number in numbers.items()}
        elif not isinstance(value, Times):
            found[figure.name] = value
    return found


def books(bench: Bench) -> tuple[int, int, int, int]:
    """Taken in, delivered, dropped, waiting; of one subscriber."""
    found = figures(bench)

    def of(name: str, *labels: str) -> int:
        return sum(int(found[f"penstock_{name} {label}"]) for label in labels)

    taken_in = of("messages_received_total", "0", "1", "2")
    delivered = of("messages_sent_total", "0") + int(found["penstock_messages_acknowledged_total"])
    dropped = of("messages_dropped_total", "behind", "expired", "too_large", "unreadable", "lost")
    waiting = found["penstock_waiting_messages"] + found["penstock_waiting_messages_of_absent_sessions"]
    return taken_in, delivered, dropped, int(waiting)


def assert_closed(bench: Bench, sent: int, refused: int, waiting: int) -> None:
    taken_in, delivered, dropped, found = books(bench)
    assert found == waiting
    assert sent == taken_in + refused == delivered + dropped + found + refused


def answer(client: Client, number: int) -> None:
    """As many messages of those that came as that, to the end; one is not wanted."""
    messages = [packet for packet in client.received() if isinstance(packet, Publish)][:number]
    for place, message in enumerate(messages):
        packet_id = message.packet_id or 0
        if message.qos == 1:
            client.send(PubAck(packet_id, ReasonCode.QUOTA_EXCEEDED if place == 0 else ReasonCode.SUCCESS))
        elif message.qos == 2:
            client.send(PubRec(packet_id))
            client.send(PubComp(packet_id))


def test_the_books_close(start_bench: StartBench) -> None:
    bench = start_bench()
    reader = bench.durable("reader", receive_maximum=10, maximum_packet_size=1_000)
    reader.subscribe("t/+", qos=2)
    publisher, sent, refused = bench.connect("publisher"), 0, 0
    for number in range(MESSAGES):
        expiry = 5 if number % 10 == 9 else None
        publisher.publish_whole(
            "t/1", bytes(2_000 if number == 4 else 9), number % 2 + 1, message_expiry_interval=expiry
        )
        sent += 1
    publisher.publish("$SYS/not allowed", b"", 1)
    sent, refused = sent + 1, refused + 1
    publisher.received()
    assert_closed(bench, sent, refused, MESSAGES - 1)  # one is larger than the reader takes, and was looked at
    answer(reader, 7)
    assert_closed(bench, sent, refused, MESSAGES - 8)
    reader.lose()
    assert_closed(bench, sent, refused, MESSAGES - 8)
    for number in range(10):
        publisher.publish_whole("t/2", b"while it is away", number % 2 + 1)
        sent += 1
    assert_closed(bench, sent, refused, MESSAGES + 2)
    bench.pass_time(10)  # three expire
    reader = bench.durable("reader")
    while packets := reader.received():
        for packet in packets:
            if isinstance(packet, Publish):
                reader.send(PubAck(packet.packet_id or 0) if packet.qos == 1 else PubRec(packet.packet_id or 0))
            elif isinstance(packet, PubRel):
                reader.send(PubComp(packet.packet_id))
    assert_closed(bench, sent, refused, 0)
    assert bench.broker.turn.expired >= 2


def test_after_a_kill_what_waits_is_what_the_session_has_not_acknowledged(bench: Bench) -> None:
    reader, publisher = bench.durable("reader"), bench.connect("publisher")
    reader.subscribe("t/+", "other", qos=1)
    for number in range(8):
        publisher.publish_whole(f"t/{number}", b"", 1)
    answer(reader, 3)
    assert figures(bench)["penstock_waiting_messages"] == 5
    bench.restart()
    bench.durable("reader").disconnect(session_expiry_interval=100)
    assert figures(bench)["penstock_waiting_messages_of_absent_sessions"] == 5
    bench.durable("reader").disconnect(session_expiry_interval=0)
    assert figures(bench)["penstock_waiting_messages_of_absent_sessions"] == 0
