"""`penstock sub`: print messages until it is stopped."""

from typing import Annotated

import typer

from penstock.commands.mqtt.address import (
    DEFAULT_URL,
    AddressParts,
    ClientId,
    GivenPassword,
    Host,
    Port,
    UnixPath,
    Url,
    Username,
    Wait,
    server_address,
)
from penstock.commands.mqtt.tls import CaFile, Cert, Insecure, Key, Tls
from penstock.errors import UsageError


def sub(
    topic_filters: Annotated[
        list[str] | None, typer.Argument(metavar="FILTER...", help="Topic filters, such as plant/+/temp.")
    ] = None,
    named_filters: Annotated[
        list[str] | None,
        typer.Option("-t", "--topic", metavar="FILTER", help="The same, as Mosquitto has it; may be repeated."),
    ] = None,
    qos: Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="Highest QoS.")] = 0,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic before the payload.")] = False,
    count: Annotated[
        int | None,
        typer.Option("-C", "--count", metavar="COUNT", min=1, help="Exit after COUNT messages."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Replay stored messages first: from earliest, -1h, or a queue offset.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    host: Host = None,
    port: Port = None,
    username: Username = None,
    password: GivenPassword = None,
    unix: UnixPath = None,
    client_id: ClientId = "",
    wait: Wait = 0,
    cafile: CaFile = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
) -> None:
    """Print the payloads of matching messages, one per line."""
    from penstock.commands.mqtt.topics import check_topic_filter

    wanted = [*(topic_filters or ()), *(named_filters or ())]
    if not wanted:
        raise UsageError("sub: give a topic filter, as FILTER or with -t")
    for topic_filter in wanted:
        check_topic_filter(topic_filter)
    tls = Tls(cafile, cert, key, insecure)
    address = server_address(url, AddressParts(host, port, username, password, unix), tls.is_given)

    from penstock.commands.mqtt.connection import PahoConnection
    from penstock.commands.mqtt.subscriber import Subscriber

    with PahoConnection(address, tls, "sub", wait, client_id) as connection:
        subscriber = Subscriber(connection, verbose, count)
        subscriber.subscribe(wanted, qos, start)
        subscriber.run()
