"""Whom a flow trusts: the authorities that its servers' certificates are signed with."""

from __future__ import annotations

import ssl

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError


def trusted(flow: Flow) -> ssl.SSLContext | bool:
    """As aiohttp wants it: True stands for the machine's authorities. Raises FlowError."""
    if not flow.said.ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=flow.said.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise FlowError(flow.name, "ca_file", f"{flow.said.ca_file}: {error}", "give certificates in PEM") from None
