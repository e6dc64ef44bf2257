"""Workloads: what a file may say, which topics it stands for, how often a message is delivered."""

import pytest

from loadtest.errors import BadWorkload
from loadtest.workloads.workload import Publishers, Subscribers, Workload, load, parse, shipped

STEPS = 'name = "n"\n[[publishers]]\ntopics = ["a"]\n[[steps]]\n'


def workload(topics: list[str], *filters: str, publishers: int = 10, subscribers: int = 10) -> Workload:
    return Workload(
        "test", "", [Publishers(topics, publishers)], [Subscribers([each], subscribers) for each in filters]
    )


SLOW = "queues-million"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == SLOW else []) for name in shipped()]
)
def test_bundled_workloads_load(name: str) -> None:
    found = load(name)
    assert found.text
    assert None not in found.deliveries()


def test_braces_stand_for_the_device() -> None:
    group = Publishers(["a/{i}/b", "c/{i%3}", "d"])
    assert group.topics_of(7) == ["a/7/b", "c/1", "d"]
    assert Publishers(["a/{i}/{j}"], each=3).topics_of(1) == ["a/1/0", "a/1/1", "a/1/2"]
    assert Subscribers(["a/{j%2}/#"], each=3).filters_of(0) == ["a/0/#", "a/1/#", "a/0/#"]


@pytest.mark.parametrize(
    ("found", "deliveries"),
    [
        (workload(["t/{i}"], "t/{i}"), 1),
        (workload(["t/{i}"], "t/#"), 10),
        (workload(["t/{i}"], "t/+", "t/{i}", "other/{i}"), 11),
        (workload(["t/{i}"], "$share/one/t/+"), 1),
        (workload(["t/{i}"], "$share/one/t/+", "$share/two/t/+", "$share/three/#"), 3),
        (workload(["t/{i}", "u/{i}"], "t/{i}"), None),  # depends on the topic
        (workload(["t/{i}"], "t/{i}", subscribers=5), None),
        (workload(["t/{i}"], "u"), 0),
    ],
)
def test_how_many_get_a_message(found: Workload, deliveries: int | None) -> None:
    assert found.deliveries() == [deliveries]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "missing required field `name`"),
        ('name = "n"', "neither [[publishers]] nor [[subscribers]]"),
        ('name = "n"\n[[publishers]]\ntopics = ["a/+"]', "contains a wildcard"),
        ('name = "n"\n[[publishers]]\ntopics = ["a/{n}"]', "in braces there may be i"),
        ('name = "n"\n[[publishers]]\ntopics = ["a/{i%0}"]', "in braces there may be i"),
        ('name = "n"\n[[publishers]]\ntopics = []', "length >= 1"),
        ('name = "n"\n[[publishers]]\ntopics = ["a"]\nqos = 3', "`int` <= 2"),
        ('name = "n"\n[[publishers]]\ntopics = ["a"]\nsizes = [8]', "`int` >= 16"),
        ('name = "n"\n[[publishers]]\ntopics = ["a"]\nspeed = 1', "unknown field `speed`"),
        ('name = "n"\n[[subscribers]]\nfilters = ["a/#/b"]', "filter 'a/#/b'"),
        ('name = "n"\n[[subscribers]]\nfilters = ["$share//b"]', "share name"),
        (STEPS + 'do = "sleep"', "Invalid enum value 'sleep'"),
        (STEPS + 'do = "publish"', "step 1, publish: say how many messages, or for how many seconds"),
        (STEPS + 'do = "wait"', "step 1, wait: say for how many seconds"),
        (
            STEPS + 'do = "join"\nwho = ["cars"]',
            "step 1, join: 'cars' is no group's name; there are publishers, subscribers",
        ),
        (STEPS + 'do = "join"', "no step has `measured = true`"),
        ('name = "n"\n[[publishers]]\ntopics = ["a"]\nabsent = true', "no step lets it join"),
        ('name = "n"\n' + 2 * '[[publishers]]\ntopics = ["a"]\nname = "cars"\n', "'cars': it means several groups"),
        ('name = "n"\n[[publishers]]\ntopics = ["a/{i}/{j}"]\ncount = 10_000\neach = 1_000', "lower `count` or `each`"),
        ("name = ", "Invalid value"),
        (b"name = '\xff'", "decode"),
    ],
)
def test_invalid_workload_files_are_refused(text: str | bytes, fault: str) -> None:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(BadWorkload) as raised:
        parse(data, "mine.toml")
    assert str(raised.value).startswith("mine.toml: ")
    assert fault in str(raised.value)


def test_an_unknown_name_tells_the_known_ones() -> None:
    with pytest.raises(BadWorkload, match="fan-out"):
        load("nowhere")
