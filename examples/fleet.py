"""Commands to a fleet of devices, and the answer of each. Devices are MQTT clients, here with paho-mqtt.

python examples/fleet.py device truck-1 &
python examples/fleet.py send "open doors" truck-1 truck-2
"""

import argparse
import asyncio
import sys
import uuid

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock import Client

STORE = "penstock://localhost:7700"


def device(name: str, gateway: str) -> None:
    """Do each command, and answer to its response topic with its correlation data."""

    def connected(client: mqtt.Client, *_: object) -> None:
        client.subscribe(f"fleet/{name}/command", qos=1)

    def subscribed(*_: object) -> None:
        print(f"{name} is ready", flush=True)

    def commanded(client: mqtt.Client, _: object, command: mqtt.MQTTMessage) -> None:
        assert command.properties is not None
        print(f"{name}: {command.payload.decode()}", flush=True)
        answer = Properties(PacketTypes.PUBLISH)
        answer.CorrelationData = command.properties.CorrelationData
        client.publish(command.properties.ResponseTopic, f"{name} did it", qos=1, properties=answer)

    client = mqtt.Client(CallbackAPIVersion.VERSION2, f"device-{name}", protocol=mqtt.MQTTv5)
    client.on_connect, client.on_subscribe, client.on_message = connected, subscribed, commanded
    host, _, port = gateway.rpartition(":")
    client.connect(host, int(port))
    client.loop_forever()


async def send(store: str, command: str, devices: list[str], timeout_s: float) -> bool:
    """Whether all devices answered. Answers are read from the first command's log_offset on, so none is missed."""
    waiting = {uuid.uuid4().bytes: name for name in devices}
    async with Client(store) as client:
        receipts = [
            await client.publish(
                f"fleet/{name}/command", command, response_topic=f"fleet/{name}/answer", correlation_data=ticket
            )
            for ticket, name in waiting.items()
        ]
        try:
            async with asyncio.timeout(timeout_s):
                async for answer in client.read("fleet/+/answer", start=receipts[0].log_offset, stop=None):
                    if waiting.pop(answer.correlation_data or b"", None):
                        print(answer.payload.decode(), flush=True)
                    if not waiting:
                        return True
        except TimeoutError:
            print(f"no answer from {', '.join(waiting.values())}", flush=True)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default=STORE, help="address of the store (%(default)s)")
    where = argparse.ArgumentParser(add_help=False)  # the same option, behind the command
    where.add_argument("--store", default=argparse.SUPPRESS, help=f"address of the store ({STORE})")
    commands = parser.add_subparsers(dest="command", required=True)
    being = commands.add_parser("device", parents=[where], help="be a device, until Ctrl-C")
    being.add_argument("name")
    being.add_argument("--gateway", default="localhost:1883", help="HOST:PORT for MQTT (%(default)s)")
    sending = commands.add_parser("send", parents=[where], help="send a command, and wait for the answers")
    sending.add_argument("text")
    sending.add_argument("devices", nargs="+", metavar="device")
    sending.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for answers (%(default)s)")
    given = parser.parse_args()
    if given.command == "device":
        device(given.name, given.gateway)
    elif not asyncio.run(send(given.store, given.text, given.devices, given.timeout)):
        sys.exit(1)


if __name__ == "__main__":
    main()
