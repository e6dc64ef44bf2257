"""Two stores with one log in Kafka: one leads, the other follows, and takes over when the first is gone."""

import pytest

from penstock.sync import Client
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster
from tests.support.replicated_stores import ReplicatedStores, status, url, wait_for
from tests.support.replicated_stores import stores as stores


def test_status_says_who_leads_and_kafka_keeps_what_a_store_lacks(stores: ReplicatedStores) -> None:
    first = stores.start()
    stores.leads(first)
    assert "no second store could take over; start one on another machine" in status(stores)["faults"]
    second = stores.start()
    with Client(url(first)) as client:
        for number in range(50):
            client.publish("plant/1", b"%d" % number)
    wait_for(
        lambda: all(row["role"] for row in status(stores)["stores"]) and len(status(stores)["stores"]) == 2, "both"
    )
    found = status(stores)
    assert found["leader"] == "store-0"
    assert found["epoch"] == 1
    assert [row["role"] for row in found["stores"]] == ["leader", "standby"]
    wait_for(lambda: status(stores)["first"] > 50, "what both have is deleted")
    second.kill()
    second.start()  # its mark is still there
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "it goes on")
    first.kill()
    stores.leads(second)
    with Client(url(second)) as client:
        assert len(list(client.read("plant/#"))) == 50


@pytest.mark.catalogue("L42")
def test_a_standby_follows_and_takes_over(stores: ReplicatedStores) -> None:
    first = stores.start()
    stores.leads(first)
    second = stores.start()
    with Client(url(first)) as client:
        for number in range(300):
            client.publish(f"plant/{number % 7}", f"first {number}".encode() * 1_000)
        assert len(list(client.read("plant/#"))) == 300
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the standby has all")
    with Client(url(second)) as client:  # the standby says who leads
        assert len(list(client.read("plant/#"))) == 300
    with Client(f"{url(first)},{second.url.removeprefix('tcp://')}") as client:  # it knows both
        assert len(list(client.read("plant/#"))) == 300
        first.kill()
        client.publish("plant/0", b"second")  # stored by the other one
        assert second.role == "ready"
        assert len(list(client.read("plant/#"))) == 301
    first.start()  # as a standby: another leads
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the old leader has all")
    second.terminate()  # it hands over
    stores.leads(first)
    with Client(url(first)) as client:
        assert len(list(client.read("plant/#"))) == 301
