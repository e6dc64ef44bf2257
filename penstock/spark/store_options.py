"""The options by which source and sink connect to a running store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from penstock.sdk.address import Address
from penstock.sdk.errors import AddressError
from penstock.spark.connection import StoreAccess
from penstock.spark.errors import BadSparkOption
from store.namespaces import NAME_SHAPE, Namespace, is_namespace

CONNECTION_OPTIONS = ("token", "user", "password", "tlsCaFile", "tlsCertFile", "tlsKeyFile", "storeTimeout")
STORE_TIMEOUT_S = 60
MOST_TIMEOUT_S = 86_400


def is_address(path: str) -> bool:
    """Whether a path is the address of a store, not a data folder."""
    return "://" in path and not path.startswith("file://")


def store_of(url: str, given: Mapping[str, str]) -> StoreAccess:
    """`given`: options by their names in lower case. Raises BadSparkOption."""
    try:
        address = Address.parse(url)
    except AddressError as error:
        raise BadSparkOption(
            f"{error} of Spark, and a data folder is a path".replace("token=", "the option token")
        ) from None
    ca_file, certificate, key = (_file(given, name) for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"))
    if key is not None and certificate is None:
        raise BadSparkOption("tlsKeyFile: is the private key of a certificate; give tlsCertFile as well")
    text = given.get("storetimeout", str(STORE_TIMEOUT_S))
    if not re.fullmatch(r"\d{1,5}", text) or not 0 <= int(text) <= MOST_TIMEOUT_S:
        raise BadSparkOption(f"storeTimeout '{text}': use seconds, from 0 to {MOST_TIMEOUT_S}")
    user, password = given.get("user", ""), given.get("password", "")
    return StoreAccess(address, given.get("token", ""), ca_file, float(text), user, password, certificate, key)


def namespace_of(given: Mapping[str, str]) -> Namespace | None:
    """The namespace of the option; an empty one is the default one. None: all, by names of the log. Raises
    BadSparkOption.
    """
    name = given.get("namespace")
    if name and not is_namespace(name):
        raise BadSparkOption(f"namespace '{name[:40]}': a name has {NAME_SHAPE}")
    return None if name is None else Namespace(name)


def _file(given: Mapping[str, str], name: str) -> str | None:
    file = given.get(name.lower())
    if file is not None and not os.path.isfile(file):
        raise BadSparkOption(f"{name} '{file}': no such file")
    return file
