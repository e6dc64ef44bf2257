"""Who may copy the log of another store."""

import pytest

from notify.links.address import StoreAddress
from penstock.cluster.copying import connect_to_leader
from penstock.config.settings import Settings
from penstock.errors import PenstockError


def test_a_store_without_the_operators_token_says_which_setting_it_lacks() -> None:
    with pytest.raises(PenstockError, match=r"set wire\.operator_token, the same in all stores"):
        connect_to_leader(Settings(), StoreAddress.parse("tcp://127.0.0.1:1"))
