"""DealtShare, the compiled part of a shared subscription, against plain Python: what it says is done with, merged."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt._dealt import DealtMessage, DealtShare

receipts = st.tuples(st.integers(1, 3), st.integers(0, 6))
steps = st.lists(st.one_of(receipts, st.just("carry"), st.just("settle"), st.just("take")), max_size=60)


class Part(DealtShare):
    def __init__(self) -> None:
        self.settled: list[int] = []

    def was_settled(self, dealt: DealtMessage) -> None:
        self.settled.append(dealt.queue_offset)


@given(steps)
def test_dealt_messages_tell_all_acknowledgements_in_order_and_merged(steps: list[tuple[int, int] | str]) -> None:
    part = Part()
    said: list[tuple[int, int]] = []
    carried: list[DealtMessage] = []
    settled: list[int] = []
    for number, step in enumerate([*steps, "take"]):
        if step == "carry":
            carried.append(DealtMessage(part, 1, number, 8 * number, 1))
            part.carry(carried[-1])
        elif step == "settle":
            for dealt in carried[:2]:
                dealt.settle()
                dealt.settle()  # it counts once
                said.append((dealt.serial, dealt.queue_offset))
                settled.append(dealt.queue_offset)
            del carried[:2]
        elif step == "take":
            taken = part.collect_acks()
            assert [(serial, first + i) for serial, first, count in taken for i in range(count)] == said
            ends = [(serial, first + count) for serial, first, count in taken]
            assert all(end != (serial, first) for end, (serial, first, _) in zip(ends, taken[1:], strict=False))
            said.clear()
        else:
            part.done(*step)
            said.append(step)  # type: ignore[arg-type]
        assert part.in_flight == {dealt.queue_offset: dealt for dealt in carried}
    assert part.settled == settled
