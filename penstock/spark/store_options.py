"""The options by which source and sink reach a store that runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from penstock.sdk.address import Address
from penstock.sdk.errors import AddressError
from penstock.spark.connection import Store
from penstock.spark.errors import BadOption

CONNECTION_OPTIONS = ("token", "tlsCaFile", "storeTimeout")
STORE_TIMEOUT_S = 60
MOST_TIMEOUT_S = 86_400


def is_address(path: str) -> bool:
    """Whether it is to be understood as the address of a store, not as a data folder."""
    return "://" in path and not path.startswith("file://")


def store_of(url: str, given: Mapping[str, str]) -> Store:
    """`given`: options by their names in lower case. Raises BadOption."""
    try:
        address = Address.parse(url)
    except AddressError as error:
        raise BadOption(
            f"{error} of Spark, and a data folder is a path".replace("token=", "the option token")
        ) from None
    ca_file = given.get("tlscafile")
    if ca_file is not None and not os.path.isfile(ca_file):
        raise BadOption(f"tlsCaFile '{ca_file}': no such file")
    text = given.get("storetimeout", str(STORE_TIMEOUT_S))
    if not re.fullmatch(r"\d{1,5}", text) or not 0 <= int(text) <= MOST_TIMEOUT_S:
        raise BadOption(f"storeTimeout '{text}': use seconds, from 0 to {MOST_TIMEOUT_S}")
    return Store(address, given.get("token", ""), ca_file, float(text))
