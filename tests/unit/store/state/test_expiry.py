"""Message expiry among the properties of a stored message."""

import pytest

from store.state.expiry import age

USER = b"\x26\0\1k\0\1v"
OTHERS = b"\1\1" + b"\3\0\2ct" + b"\x08\0\1r" + b"\x09\0\3\2\2\2" + b"\x0b\x80\2" + b"\x23\0\2" + USER


def expires_in(seconds: int) -> bytes:
    return b"\2" + seconds.to_bytes(4, "big")


@pytest.mark.parametrize("before", [b"", OTHERS, USER * 3])
@pytest.mark.parametrize("after", [b"", OTHERS])
def test_the_interval_shrinks_wherever_it_stands(before: bytes, after: bytes) -> None:
    assert age(before + expires_in(100) + after, 30) == before + expires_in(70) + after
    assert age(before + expires_in(100) + after, 0) == before + expires_in(100) + after
    assert age(before + expires_in(100) + after, -5) == before + expires_in(100) + after


@pytest.mark.parametrize("age_s", [100, 101, 1 << 40])
def test_age_of_an_expired_message_is_none(age_s: int) -> None:
    assert age(OTHERS + expires_in(100), age_s) is None


def test_an_interval_of_0_is_over_once_a_second_has_passed() -> None:
    assert age(OTHERS + expires_in(0), 0) == OTHERS + expires_in(0)
    assert age(OTHERS + expires_in(0), 1) is None


@pytest.mark.parametrize("properties", [b"", OTHERS, b"\x7f\2\0\0\0\1"])
def test_without_an_interval_nothing_changes(properties: bytes) -> None:
    assert age(properties, 1 << 40) == properties
