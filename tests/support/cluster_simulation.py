"""A cluster of stores that crash, stand still, lose disks, answers and Kafka; repeatable by its seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from store.replication.replica import Replica
from tests.support.cluster_checks import ClusterChecks
from tests.support.cluster_network import QUIET, SimulatedKafka, SimulatedTime, Trouble
from tests.support.cluster_store import BUSY, Clock, Disk, SimulatedStore, Surroundings

FAULTS_S = 20.0
CALM_S = 12.0
CALM_WITH_WILD_CLOCKS_S = 30.0
LAST_S = 3.0  # nothing is published any more, so that all get to the same end


class ClusterSimulation:
    """One run: `run()` raises BrokenPromise, or what the rules raise."""

    def __init__(
        self, seed: int, replica: type[Replica] = Replica, store: type[SimulatedStore] = SimulatedStore
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.time = SimulatedTime()
        self.kafka = SimulatedKafka(self.time, self.chance)
        self.clocks_agree = seed % 4 != 3
        self.checks = ClusterChecks(self.clocks_agree)
        self.around = Surroundings(self.time, self.kafka, self.chance, self.checks)
        names = "abc"[: self.chance.choice((2, 3, 3))]
        self.stores = [store(name, self.around, self._clock(), replica) for name in names]

    def _clock(self) -> Clock:
        rate = self.chance.uniform(0.97, 1.03) if self.clocks_agree else self.chance.uniform(0.4, 2.5)
        return Clock(self.time, rate, self.chance.uniform(0, 1e6))

    def run(self) -> ClusterSimulation:
        for store in self.stores:
            store.start()
        self.time.run_until(6)
        while self.time.now_s < FAULTS_S:
            self._fault()
            self.time.run_until(self.time.now_s + self.chance.choice((0.2, 1, 1, 5)) * self.chance.random())
        self.end_faults()
        acknowledged = len(self.checks.acknowledged)
        self.time.run_until(self.time.now_s + (CALM_S if self.clocks_agree else CALM_WITH_WILD_CLOCKS_S))
        self.checks.expect(len(self.checks.acknowledged) > acknowledged, "nothing goes on after the faults")
        self.around.publishing = 0.0
        self.time.run_until(self.time.now_s + LAST_S)
        self.checks.nothing_is_lost()
        for store in self.stores:
            end = store.replica.accepted
            self.checks.expect(end == len(self.checks.agreed), f"{store.name} stays at {end}")
        return self

    def end_faults(self) -> None:
        self.kafka.trouble, self.kafka.is_away = QUIET, False
        self.kafka.cut_off.clear()
        self.around.publishing = BUSY
        for store in self.stores:
            store.wake()
            if not store.is_up:
                store.start()

    # --- faults

    def _fault(self) -> None:
        self.around.publishing = self.chance.choice((0.0, 0.03, BUSY, BUSY))  # at rest, late frames fit more often
        faults: list[Callable[[], None]] = [
            self._crash,
            self._crash,
            self._pause,
            self._pause,
            self._cut_off,
            self._kafka_away,
            self._trouble,
            self._trouble,
            self._stop,
            self._new_epoch,
        ]
        self.chance.choice(faults)()

    def _one(self) -> SimulatedStore:
        """Often the leader, or one that believes so."""
        leading = [store for store in self.stores if store.is_leading]
        return self.chance.choice(leading if leading and self.chance.random() < 0.6 else self.stores)

    def _crash(self) -> None:
        store = self._one()
        store.crash()
        if self.chance.random() < 0.2:
            others = [other.disk for other in self.stores if other is not store]
            store.lose_disk(self.chance.choice([Disk(), *others]))
        self._starts_again(store)

    def _starts_again(self, store: SimulatedStore) -> None:
        def start() -> None:
            if not store.is_up:
                store.start()

        self.time.after(self.chance.uniform(0.1, 5), start)

    def _pause(self) -> None:
        store = self._one()
        store.pause()
        self.time.after(self.chance.uniform(0.3, 7), store.wake)

    def _cut_off(self) -> None:
        name = self._one().name
        self.kafka.cut_off.add(name)
        self.time.after(self.chance.uniform(0.3, 6), lambda: self.kafka.cut_off.discard(name))

    def _kafka_away(self) -> None:
        self.kafka.is_away = True

        def back() -> None:
            self.kafka.is_away = False

        self.time.after(self.chance.uniform(0.3, 5), back)

    def _trouble(self) -> None:
        lost, late, twice, answer_lost = (self.chance.choice((0.0, 0.1, 0.3)) for _ in range(4))
        self._has_trouble(Trouble(lost, late, twice, answer_lost))

    def _has_trouble(self, trouble: Trouble) -> None:
        self.kafka.trouble = trouble

        def over() -> None:
            self.kafka.trouble = QUIET

        self.time.after(self.chance.uniform(0.5, 6), over)

    def _stop(self) -> None:
        store = self._one()
        if self.chance.random() < 0.5:
            self._has_trouble(Trouble(answer_lost=0.5))
        if store.is_up and not store.is_paused:
            store.do(store.replica.stop(store.clock.now_s()))

    def _new_epoch(self) -> None:
        store = self._one()
        if store.is_up and not store.is_paused:
            store.do(store.replica.take_new_epoch(store.clock.now_s()))
