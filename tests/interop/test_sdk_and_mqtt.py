"""Stock MQTT clients and groups of the client, both ways: each message once, under one id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import PubAck, PubRec
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.part import Part
from penstock import Client
from penstock.sdk.delivery import Delivery
from tests.interop.programs import mark_ready, mosquitto_sub, run
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

pytestmark = pytest.mark.asyncio

EACH = 30


@pytest.fixture
def mqtt_port(running: StoreProcess, tmp_path: Path) -> Iterator[int]:
    port = free_port()
    command = ["gateway", "--store", running.url, "--listen", f"mqtt://127.0.0.1:{port}"]
    gateway = Part(tmp_path / "gateway.log", command, {})
    mark_ready(port)
    yield port
    gateway.kill()


@pytest.mark.catalogue("E18", "K40")
async def test_both_ways_with_groups(url: str, mqtt_port: int) -> None:
    by_mqtt = [b"%d-%d" % (qos, number) for qos in range(3) for number in range(EACH)]
    by_client = [b"sdk-%d" % number for number in range(EACH)]
    found: list[Delivery] = []
    is_done = asyncio.Event()

    async def work(client: Client) -> None:
        async for message in client.subscribe("m/+", group="g", prefetch=5):
            found.append(message)
            assert await message.ack()
            if len(found) == 4 * EACH:
                is_done.set()

    def publish_by_mqtt() -> None:
        for qos in range(3):
            lines = b"".join(payload + b"\n" for payload in by_mqtt if payload.startswith(b"%d-" % qos))
            run("mosquitto_pub", "-p", str(mqtt_port), "-t", "m/mqtt", "-q", str(qos), "-l", stdin=lines)

    async with Client(url) as client, Client(url) as second, client.subscribe("m/+", group="g"):
        subscriber = mosquitto_sub(mqtt_port, "m/#", 1)
        working = [asyncio.create_task(work(each)) for each in (client, second)]
        receipts, _ = await asyncio.gather(
            asyncio.gather(*(client.publish("m/sdk", payload) for payload in by_client)),
            asyncio.to_thread(publish_by_mqtt),
        )
        await asyncio.wait_for(is_done.wait(), 30)
        delivered = await asyncio.to_thread(subscriber.messages, 4 * EACH)
        for worker in working:
            worker.cancel()

        assert sorted(message.payload for message in found) == sorted(by_mqtt + by_client)  # each once
        read = [message async for message in client.read("m/#")]
        assert [(message.topic, message.payload) for message in read] == delivered
        assert {message.message_id: message.payload for message in found} == {
            message.message_id: message.payload for message in read
        }
        stored = {receipt.message_id for receipt in receipts}
        assert {message.message_id for message in found if message.topic == "m/sdk"} == stored
        async with client.subscribe("m/mqtt", group="places") as places:
            number = 0
            async for message in places:
                assert (message.queue_offset, message.payload) == (number, by_mqtt[number])
                same = await client.get(message.message_id)
                assert (same.queue_offset, same.log_offset) == (message.queue_offset, message.log_offset)
                number += 1
                if number == len(by_mqtt):
                    break


async def test_a_request_of_mqtt_5_is_answered_by_a_group(url: str, mqtt_port: int) -> None:
    async with Client(url) as client, client.subscribe("ask/+", group="helpers") as questions:
        asking = asyncio.create_task(
            asyncio.to_thread(
                run,
                "mosquitto_rr",
                "-p",
                str(mqtt_port),
                "-t",
                "ask/7",
                "-e",
                "answers/7",
                "-m",
                "how much?",
                "-W",
                "20",
            )
        )
        async for question in questions:
            assert question.payload == b"how much?"
            assert question.response_topic == "answers/7"
            await client.publish(question.response_topic, "much", correlation_data=question.correlation_data)
            assert await question.ack()
            break
        assert (await asking).strip() == b"much"


@pytest.mark.parametrize("qos", [1, 2])
async def test_the_receipt_of_an_mqtt_client_says_what_the_client_reads(url: str, mqtt_port: int, qos: int) -> None:
    def publish() -> list[dict[str, str]]:
        device = Device(mqtt_port, "device")
        assert device.connect().reason_code is ReasonCode.SUCCESS
        answers = []
        for number in range(5):
            device.publish(f"receipts/{number % 2}", b"%d" % number, qos, user_properties=(("penstock-receipt", "1"),))
            answer = device.next(PubAck) if qos == 1 else device.next(PubRec)
            answers.append(dict(answer.properties.user_properties))
        return answers

    async with Client(url) as client:
        await client.publish("receipts/0", b"before")
        receipts = await asyncio.to_thread(publish)
        read = {message.payload: message for topic in "01" async for message in client.read(f"receipts/{topic}")}
        for number, receipt in enumerate(receipts):
            message = read[b"%d" % number]
            assert receipt == {
                "penstock-log-offset": str(message.log_offset),
                "penstock-queue": message.topic,
                "penstock-queue-offset": str(message.queue_offset),
            }
