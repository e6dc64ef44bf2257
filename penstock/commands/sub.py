"""`penstock sub`: print messages until it is stopped."""

from typing import Annotated

import typer

from penstock.commands.mqtt.address import ClientId, Url, Wait
from penstock.commands.mqtt.tls import CaFile, Cert, Insecure, Key, Tls


def sub(
    topic_filters: Annotated[
        list[str], typer.Argument(metavar="FILTER...", help="Topic filters, such as plant/+/temp.")
    ],
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
    url: Url = "mqtt://127.0.0.1:1883",
    client_id: ClientId = "",
    wait: Wait = 0,
    cafile: CaFile = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
) -> None:
    """Print the payloads of matching messages, one per line."""
    from penstock.commands.mqtt.address import parse_url
    from penstock.commands.mqtt.topics import check_topic_filter

    for topic_filter in topic_filters:
        check_topic_filter(topic_filter)
    address = parse_url(url)
    tls = Tls(cafile, cert, key, insecure)

    from penstock.commands.mqtt.connection import PahoConnection
    from penstock.commands.mqtt.subscriber import Subscriber

    with PahoConnection(address, tls, "sub", wait, client_id) as connection:
        subscriber = Subscriber(connection, verbose, count)
        subscriber.subscribe(topic_filters, qos, start)
        subscriber.run()
