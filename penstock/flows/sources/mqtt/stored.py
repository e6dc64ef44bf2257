"""What messages of an MQTT broker become."""

from __future__ import annotations

from datetime import timedelta

from penstock.flows import VIA
from penstock.flows.definition import Flow
from penstock.flows.sources.messages import ToStore, letters_topic, mapped_message
from penstock.flows.sources.mqtt.messages import BrokerMessage


def message_of_broker(flow: Flow, store: str, mark: str, message: BrokerMessage) -> ToStore | None:
    """What a message becomes in a flow. None: `where` leaves it out, or it came through this store before.

    `store`: the identity of its log; `mark`: that a message came in from this broker. Raises Unfit.
    """
    if store and store in message.stores:
        return None
    if flow.where is not None and not flow.where.holds(message):
        return None
    topic = flow.topic.text(message) if flow.topic is not None else message.topic
    topic, payload, options = mapped_message(flow, message, topic, message.payload, {}, message.content_type, "")
    new = {header: template.text(message) for header, template in flow.mapped_headers.items()}
    had = [pair for pair in message.user_properties if pair[0] not in new]
    options["headers"] = [*had, *new.items(), *([(VIA, mark)] if mark else ())]
    options["qos"], options["retain"] = message.qos, message.retain
    if message.response_topic:
        options["response_topic"] = message.response_topic
    if message.correlation_data is not None:
        options["correlation_data"] = message.correlation_data
    if message.expires_s:
        options["expires_after"] = timedelta(seconds=message.expires_s)
    return topic, payload, options


def letter_of_broker(flow: Flow, message: BrokerMessage, reason: str, with_payload: bool) -> ToStore:
    """What a message becomes that cannot be what the flow makes of it."""
    said = [("penstock-reason", reason), ("mqtt-topic", message.topic[:1000])]
    had = [pair for pair in message.user_properties if pair[0] != VIA] if with_payload else []
    return letters_topic(flow, "mqtt"), message.payload if with_payload else b"", {"headers": [*had, *said]}
