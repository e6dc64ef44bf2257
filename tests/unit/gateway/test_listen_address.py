"""The addresses that --listen takes, and who can reach them."""

import pytest

from gateway.listen_address import ListenAddress, ListenError, check_exposure

GOOD = {
    "mqtt://127.0.0.1:1883": "mqtt://127.0.0.1:1883",
    "mqtts://[::1]:0": "mqtts://[::1]:0",
    "ws://localhost:8083": "ws://localhost:8083/mqtt",
    "wss://host.example:443/mqtt": "wss://host.example:443/mqtt",
    "mqtt://0.0.0.0:1883?proxy_protocol=2": "mqtt://0.0.0.0:1883?proxy_protocol=2",
    "wss://[::]:443/mqtt?proxy_protocol=2": "wss://[::]:443/mqtt?proxy_protocol=2",
    "unix:///run/penstock/mqtt.sock": "unix:///run/penstock/mqtt.sock",
    "unix:///run/p.sock?proxy_protocol=2": "unix:///run/p.sock?proxy_protocol=2",
    "unix:///run/p.sock?fd=7": "unix:///run/p.sock?fd=7",
}
BAD = (
    "127.0.0.1:1883",
    "mqtt://127.0.0.1",
    "mqtt://127.0.0.1:65536",
    "mqtt://127.0.0.1:1883/mqtt",
    "mqtt://127.0.0.1:1883?proxy_protocol=1",
    "mqtt://127.0.0.1:1883?tls=1",
    "ws://127.0.0.1:1883/other",
    "http://127.0.0.1:80",
    "unix://relative.sock",
    "mqtt://::1:1883",
)


@pytest.mark.parametrize("url", GOOD)
def test_an_address(url: str) -> None:
    assert str(ListenAddress.parse(url)) == GOOD[url]


@pytest.mark.parametrize("url", BAD)
def test_invalid_listen_addresses_are_refused(url: str) -> None:
    with pytest.raises(ListenError, match="cannot listen there; use mqtt://"):
        ListenAddress.parse(url)


OPEN = ("mqtt://0.0.0.0:1883", "wss://[::]:443", "mqtts://192.0.2.1:8883", "ws://host.example:80")
LOCAL = ("mqtt://127.0.0.1:1883", "ws://[::1]:8083", "mqtts://localhost:8883", "unix:///run/p.sock")


@pytest.mark.parametrize("url", OPEN)
def test_beyond_loopback_somebody_has_to_say_who_may_connect(url: str) -> None:
    addresses = (*map(ListenAddress.parse, LOCAL), ListenAddress.parse(url))
    with pytest.raises(ListenError, match=r"auth\.allow_anonymous = true"):
        check_exposure(addresses, is_auth_configured=False, allow_anonymous=False)
    check_exposure(addresses, is_auth_configured=True, allow_anonymous=False)
    check_exposure(addresses, is_auth_configured=False, allow_anonymous=True)


def test_loopback_addresses_need_no_authentication() -> None:
    check_exposure(tuple(map(ListenAddress.parse, LOCAL)), is_auth_configured=False, allow_anonymous=False)
