"""Events as records of Kafka topics, at least once or exactly once.

Exactly once: each transaction also writes to a compacted topic of the flow which messages are done. A message that
comes again, as the flow or the store was killed before it was acknowledged, is looked up there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError, SinkAway, SinkLost, SinkRefused
from penstock.flows.events import EventWriter, FlowEvent
from penstock.flows.kafka_place import kafka_place, refusal
from penstock.flows.sinks.kafka_done import DoneMessages, DoneTopic
from penstock.kafka_place import is_kafka_topic
from penstock.sdk.errors import ClientError
from penstock.sdk.subscription import Subscription

MOST: Final = 2_000  # events that it takes at a time: all that a group hands out at once
MOST_AT_ONCE: Final = 4_000  # of several sends, in one transaction
TRANSACTION_S: Final = 60.0
POLL_S: Final = 0.05
GRACE_S: Final = 5.0  # beyond the time after which librdkafka gives up by itself

_OF_THE_MESSAGE: Final = {
    *(KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP),
    KafkaError._INVALID_ARG,
}
_OF_ITS_TOPIC: Final = {
    *(KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART),
    *(KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION),
}
_FENCED: Final = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}

T = TypeVar("T")


class Produced(NamedTuple):
    """A record to be produced."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, str | bytes | None]]


class WaitingSend:
    """Events that a caller of send() waits for."""

    def __init__(self, events: Sequence[FlowEvent], records: Sequence[Produced]) -> None:
        self.events = events
        self.records = records
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.fault: KafkaError | None = None  # what Kafka says of one of them

    def report(self, error: KafkaError | None, _: object = None) -> None:
        """What Kafka says of one of its records; of several errors one of the message itself is kept."""
        if error is not None and (self.fault is None or error.code() in _OF_THE_MESSAGE):
            self.fault = error

    def settle(self, error: Exception | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


class KafkaSink:
    """Produces to one cluster. Sends that come while another one is under way go together in the next one."""

    most = MOST

    def __init__(self, flow: Flow, writer: EventWriter) -> None:
        """Raises FlowError."""
        place = kafka_place(flow, "to", flow.said.to)
        if flow.said.format == "cloudevents-batch":
            reason = "a record of Kafka is one event"
            raise FlowError(flow.name, "format", reason, "say cloudevents, cloudevents-binary or raw")
        if not place.topic and flow.said.map_.topic is None:
            reason = "says no topic"
            raise FlowError(flow.name, "to", reason, "say kafka://HOST:9092/TOPIC, or map.topic for each message")
        self._writer = writer
        self._topic = place.topic
        self._timeout_s = flow.said.timeout_s
        self._brokers_say: KafkaError | None = None  # the last thing, of a connection
        id_ = flow.said.kafka.id or f"penstock.flow.{flow.name}"
        self._config: dict[str, Any] = {
            **place.config,
            "error_cb": self._noted,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # as Kafka's own clients
            "compression.type": "lz4",
            "linger.ms": 5,
            "delivery.report.only.error": True,
            "delivery.timeout.ms": round(self._timeout_s * 1000),
        }
        self._done: DoneMessages | None = None
        self._done_topic: DoneTopic | None = None
        if flow.said.kafka.exactly_once:
            self._done_topic = DoneTopic(id_, {**place.config, "error_cb": self._noted}, self._timeout_s)
            self._config |= {
                "transactional.id": id_,
                "transaction.timeout.ms": round(max(TRANSACTION_S, self._timeout_s) * 1000),
            }
        self._producer: Producer | None = None
        self._group: Subscription | None = None
        self._waiting: list[WaitingSend] = []
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, f"flow-{flow.name}")  # librdkafka's calls block

    # --- as a sink

    async def open(self, group: Subscription) -> None:
        self._group = group
        await self._in_thread(self._open)

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
        if self._producer is not None:
            self._producer.purge(blocking=False)
        await self._in_thread(self._forget)
        self._thread.shutdown(wait=False)

    async def send(self, events: Sequence[FlowEvent]) -> None:
        send = WaitingSend(events, [self._record(event) for event in events])
        self._waiting.append(send)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._send_all())
        await send.answer

    def _record(self, event: FlowEvent) -> Produced:
        """Raises SinkRefused, Unfit."""
        topic = self._topic or event.topic
        if not self._topic and not is_kafka_topic(topic):
            raise SinkRefused(f"{topic[:200]!r} is no topic of Kafka")
        headers, value = self._writer.kafka(event)
        return Produced(topic, (event.key or event.topic).encode(), value, headers)

    async def _send_all(self) -> None:
        while self._waiting:
            sends = self._taken()
            try:
                await self._send_some(sends)
            except (SinkAway, SinkLost) as error:
                self._fail(sends, error)
            except BaseException as error:
                self._fail(sends, error if isinstance(error, Exception) else SinkAway("the flow ends"))
                raise

    def _fail(self, sends: list[WaitingSend], error: Exception) -> None:
        """What waits is sent after these, so it waits at the gate as well."""
        for send in (*sends, *self._waiting):
            send.settle(error)
        self._waiting = []

    def _taken(self) -> list[WaitingSend]:
        """What goes together."""
        number = 0
        for place, send in enumerate(self._waiting):
            number += len(send.records)
            if number > MOST_AT_ONCE and place:
                break
        else:
            place = len(self._waiting)
        sends, self._waiting = self._waiting[:place], self._waiting[place:]
        return sends

    async def _send_some(self, sends: list[WaitingSend]) -> None:
        """Until each is settled. Raises SinkAway, SinkLost for all that are not."""
        if self._done is None and self._done_topic is not None:
            await self._in_thread(self._open)
        if self._done is not None:
            await self._place()
        await self._in_thread(self._produce, sends)
        refused = [send for send in sends if send.fault is not None]
        again = sends if refused and self._done is not None else refused  # a transaction is there as a whole, or not
        if len(sends) == 1 and refused:
            assert sends[0].fault is not None
            sends[0].settle(SinkRefused(sends[0].fault.str()))
            return
        for send in sends:
            if send not in again:
                send.settle(None)
        for send in again:  # each alone: Kafka refuses a batch of records for one of them
            send.fault = None
            await self._send_some([send])

    async def _place(self) -> None:
        """Learn what the store has of the group now."""
        assert self._group is not None
        assert self._done is not None
        try:
            self._done.place(await self._group.position())
        except ClientError as error:
            raise SinkAway(f"the store: {error}") from None

    # --- on the sink's thread

    async def _in_thread(self, do: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do, *args)

    def _noted(self, error: KafkaError) -> None:
        if self._brokers_say is None or not refusal(self._brokers_say):  # what follows it says less
            self._brokers_say = error

    def _open(self) -> None:
        """Raises SinkAway, SinkLost."""
        self._forget()
        producer = Producer(self._config)
        self._producer = producer
        try:
            if self._done_topic is not None:
                self._done_topic.make()
                producer.init_transactions(self._timeout_s)
                self._done = self._done_topic.read()
            else:
                producer.list_topics(timeout=self._timeout_s)
        except KafkaException as error:
            producer.poll(0)
            failure = self._failure(error.args[0])
            self._forget()
            raise failure from None
        except TimeoutError:  # of what an AdminClient was asked
            self._forget()
            raise SinkAway(self._why("it did not answer in time")) from None

    def _forget(self) -> None:
        """Drop the producer and what it knows."""
        if self._producer is not None:
            self._producer.purge()
        self._producer, self._done = None, None

    def _produce(self, sends: list[WaitingSend]) -> None:
        """Have Kafka take them, but for those that it has. Raises SinkAway, SinkLost."""
        if self._producer is None:
            self._open()
        assert self._producer is not None
        try:
            if self._done is None:
                self._produce_all(self._producer, sends)
            else:
                self._produce_once(self._producer, sends, self._done)
        except KafkaException as error:
            failure = self._failure(error.args[0])
            self._forget()
            raise failure from None

    def _produce_all(self, producer: Producer, sends: list[WaitingSend]) -> None:
        for send in sends:
            report = send.report
            for record in send.records:
                self._enqueue(producer, record, report)
        if producer.flush(self._timeout_s + GRACE_S):
            producer.purge()
            producer.flush(0)
            self._forget()
            raise SinkAway(self._why("it did not answer in time"))
        self._judge(sends)

    def _produce_once(self, producer: Producer, sends: list[WaitingSend], done: DoneMessages) -> None:
        """One transaction. If it is aborted, those that are the cause of it have a fault."""
        assert self._done_topic is not None
        new = done.missing([event for send in sends for event in send.events])
        if not new:
            return
        then = done.with_messages(new)
        producer.begin_transaction()
        for send in sends:
            report = send.report
            for event, record in zip(send.events, send.records, strict=True):
                if event.group_offset in new:
                    self._enqueue(producer, record, report)
        failure: KafkaException | None = None
        if not any(send.fault for send in sends):
            producer.produce(self._done_topic.name, then.encode(), self._done_topic.key, partition=0)
            try:
                producer.commit_transaction(self._timeout_s + GRACE_S)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise  # it may have been committed: the topic says so when it is read again
                failure = error
            else:
                self._done = then
                return
        producer.abort_transaction(self._timeout_s + GRACE_S)
        self._judge(sends)
        if failure is not None and not any(send.fault for send in sends):
            raise failure

    def _enqueue(self, producer: Producer, record: Produced, report: Callable[..., None]) -> None:
        """Raises KafkaException where the queue stays full."""
        topic, key, value, headers = record
        for _ in range(round((self._timeout_s + GRACE_S) / POLL_S)):
            try:
                producer.produce(topic, value, key, headers=headers, on_delivery=report)
                return
            except BufferError:
                producer.poll(POLL_S)
            except KafkaException as error:
                report(error.args[0])
                return
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _judge(self, sends: list[WaitingSend]) -> None:
        """Leave the faults that are a message's own. Raises SinkAway, SinkLost for any other one."""
        others = [send.fault for send in sends if send.fault is not None and not self._is_refused(send.fault)]
        for send in sends:
            if send.fault is not None and not self._is_refused(send.fault):
                send.fault = None
        told = [fault for fault in others if fault.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)]
        if told or (others and not any(send.fault for send in sends)):
            self._forget()
            raise self._failure((told or others)[0])

    def _is_refused(self, fault: KafkaError) -> bool:
        return fault.code() in _OF_THE_MESSAGE or (not self._topic and fault.code() in _OF_ITS_TOPIC)

    def _failure(self, error: KafkaError) -> Exception:
        if error.code() in _FENCED:
            return SinkLost("another process runs this flow, or one with the same kafka.id; it has taken over")
        if error.code() in _OF_ITS_TOPIC and self._topic:
            return SinkAway(f"Kafka: topic {self._topic}: {error.str()}; create it, or allow it to the flow's user")
        return SinkAway(self._why(error.str()))

    def _why(self, text: str) -> str:
        error, self._brokers_say = self._brokers_say, None
        if error is None:
            return f"Kafka: {text}"
        said, remedy = error.str(), refusal(error)
        if remedy:
            return f"Kafka: {said}; {remedy}"
        return f"Kafka: {text}{f' ({said})' if said != text else ''}"
