"""Inflight, the compiled ring of packet identifiers, against a plain-Python model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt._inflight import Inflight

IDS = 65_535


class Model:
    """Every identifier in use, in the order of sending."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.ring: dict[int, int] = {}
        self.held: dict[int, object] = {}
        self.last_id = 0

    def __len__(self) -> int:
        return len(self.ring) + len(self.held)

    def next_id(self) -> int:
        while True:
            self.last_id = self.last_id % IDS + 1
            if self.last_id not in self.held:
                return self.last_id


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2**63)),
        st.tuples(st.just("hold"), st.integers()),
        st.tuples(st.just("ack"), st.integers(0, 40)),
        st.tuples(st.just("ack any"), st.integers(0, IDS)),
        st.tuples(st.just("drop held"), st.integers(0, 40)),
        st.tuples(st.just("window"), st.integers(1, 30)),
    ),
    max_size=200,
)


def apply(inflight: Inflight, model: Model, step: tuple[str, int]) -> None:
    kind, value = step
    if kind == "window":
        inflight.window = model.window = value
    elif kind in ("put", "hold"):
        if len(model) >= model.window:
            return
        expected = model.next_id()
        if kind == "put":
            assert inflight.put(value) == expected
            model.ring[expected] = value
        else:
            assert inflight.hold(value) == expected
            model.held[expected] = value
    elif kind == "drop held":
        if model.held:
            packet_id = sorted(model.held)[value % len(model.held)]
            del model.held[packet_id], inflight.held[packet_id]
    else:
        ids = list(model.ring)
        packet_id = ids[value % len(ids)] if kind == "ack" and ids else value
        assert inflight.ack(packet_id) == (model.ring.pop(packet_id, None) is not None)


def agree(inflight: Inflight, model: Model) -> None:
    assert len(inflight) == len(model)
    assert inflight.unacknowledged() == list(model.ring.items())
    assert inflight.oldest() == next(iter(model.ring.values()), None)
    assert dict(inflight.held) == model.held
    assert inflight.is_full() == (len(model) >= model.window)
    assert inflight.room() == max(0, min(model.window - len(model), IDS))


@given(steps, st.integers(1, 30), st.dictionaries(st.integers(1, 60), st.integers(), max_size=10))
def test_inflight_agrees_with_its_model(steps: list[tuple[str, int]], window: int, restored: dict[int, int]) -> None:
    inflight, model = Inflight(window), Model(window)
    for packet_id, item in restored.items():
        inflight.restore(packet_id, item)
        model.held[packet_id] = item
    agree(inflight, model)
    for step in steps:
        apply(inflight, model, step)
        agree(inflight, model)


@pytest.mark.parametrize("window", [1, 100, 3_000])
def test_identifiers_start_again(window: int) -> None:
    """Twice round, with some identifiers held all the time and some acknowledged late."""
    inflight, model = Inflight(window + 3), Model(window + 3)
    for packet_id in (1, 2, IDS):
        inflight.restore(packet_id, "held")
        model.held[packet_id] = "held"
    for log_offset in range(2 * IDS + 10):
        apply(inflight, model, ("put", log_offset))
        while len(model) >= model.window:
            apply(inflight, model, ("ack", (log_offset * 7) % window))
    agree(inflight, model)


@pytest.mark.mqtt("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
def test_an_identifier_in_flight_is_never_given_again() -> None:
    """One that is never acknowledged stops the rest once all others were used."""
    inflight = Inflight(10)
    first = inflight.put(1)
    seen = set()
    while not inflight.is_full():
        packet_id = inflight.put(2)
        assert packet_id != first
        seen.add(packet_id)
        assert inflight.ack(packet_id)
    assert len(seen) == IDS - 2
    assert inflight.ack(first)
    assert not inflight.is_full()
    assert inflight.put(3) not in (0, IDS + 1)


@pytest.mark.parametrize("window", [10, IDS])
def test_as_many_as_there_is_room_for_can_be_put_in_flight(window: int) -> None:
    """Also where one that is never acknowledged, and others that are held, leave few identifiers."""
    inflight = Inflight(window)
    for packet_id in (IDS - 3, IDS - 1, 7):
        inflight.restore(packet_id, "held")
    inflight.put(1)
    used = {packet_id for packet_id, _ in inflight.unacknowledged()} | set(inflight.held)
    while room := inflight.room():
        for _ in range(min(room, 1_000)):
            packet_id = inflight.hold("more")
            assert packet_id not in used
            used.add(packet_id)
        if window < IDS:
            for packet_id in [each for each, item in inflight.held.items() if item == "more"]:
                del inflight.held[packet_id]
    assert inflight.is_full()
    assert len(used) > IDS - 10
