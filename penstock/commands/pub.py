"""`penstock pub`: publish messages, wait until the server has them, exit."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

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
from penstock.errors import PenstockError, UsageError


@dataclass(frozen=True, slots=True)
class PayloadSource:
    """The source of the payloads. Exactly one field is set."""

    message: str | None
    file: str | None
    lines: bool
    null: bool

    def __post_init__(self) -> None:
        given = (self.message is not None, self.file is not None, self.lines, self.null)
        if sum(given) != 1:
            raise UsageError("pub: give exactly one of -m TEXT, -f FILE, -s, -l and -n")

    def payloads(self) -> Iterator[bytes]:
        if self.message is not None:
            yield os.fsencode(self.message)  # the bytes of the argument, whatever the locale
        elif self.file is not None:
            yield _read(self.file)
        elif self.lines:
            yield from _lines(sys.stdin.buffer)
        else:
            yield b""


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise PenstockError(f"{file}: {error.strerror}; name a readable file with -f") from None


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    for line in stream:
        yield line.removesuffix(b"\n")


def _one_of(*topics: str | None) -> str:
    given = [topic for topic in topics if topic is not None]
    if len(given) != 1:
        raise UsageError("pub: give one topic, as TOPIC or with -t")
    return given[0]


def pub(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Topic to publish to.")] = None,
    named_topic: Annotated[
        str | None, typer.Option("-t", "--topic", metavar="TOPIC", help="The same, as Mosquitto has it.")
    ] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="Payload.")] = None,
    file: Annotated[
        str | None,
        typer.Option("-f", "--file", metavar="FILE", help="File to send; - is standard input."),
    ] = None,
    whole: Annotated[bool, typer.Option("-s", "--stdin-file", help="Standard input is one message.")] = False,
    lines: Annotated[
        bool, typer.Option("-l", "--lines", "--stdin-line", help="One message per line of standard input.")
    ] = False,
    null: Annotated[
        bool, typer.Option("-n", "--null", "--null-message", help="Empty payload; with -r it clears the topic.")
    ] = False,
    qos: Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="QoS.")] = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Publish retained messages.")] = False,
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
    """Publish to a topic. With QoS 1 or 2, exit after the server has acknowledged every message."""
    from penstock.commands.mqtt.topics import check_topic_name

    if whole and file is None:
        file = "-"
    source = PayloadSource(message, file, lines, null)
    topic_name = _one_of(topic, named_topic)
    check_topic_name(topic_name)
    tls = Tls(cafile, cert, key, insecure)
    address = server_address(url, AddressParts(host, port, username, password, unix), tls.is_given)

    from penstock.commands.mqtt.connection import PahoConnection
    from penstock.commands.mqtt.publisher import CommandPublisher

    with PahoConnection(address, tls, "pub", wait, client_id) as connection:
        publisher = CommandPublisher(connection, topic_name, qos, retain)
        for payload in source.payloads():
            publisher.publish(payload)
        publisher.finish()
