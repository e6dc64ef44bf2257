"""Tokens and certificates with which a store and its gateways authenticate, read from the configured files."""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path

from gateway.settings import GatewaySettings
from notify.links.address import StoreAddress
from notify.settings import WireSettings
from penstock.config.secret_files import check_secret, read_file
from penstock.errors import PenstockError, UsageError
from store.namespaces import NAME_SHAPE, is_namespace
from store.wire.messages import Role

log = logging.getLogger("penstock")


Tokens = Mapping[str, str | None]
"""The token that a peer must present, by role (None: no token). A missing role is refused."""


def tokens_of_store(settings: WireSettings) -> Tokens:
    """Raises PenstockError."""
    shared = _shared_token(settings)
    found: dict[str, str | None] = dict(_tokens_by_role(settings, shared))
    of_namespaces = tokens_of_namespaces(settings)
    if not shared and Role.CLIENT not in found and of_namespaces:
        found[Role.CLIENT.value] = (
            secrets.token_hex()
        )  # a secret that no client knows: only clients of namespaces are admitted
    if shared in of_namespaces.values() or set(found.values()) & set(of_namespaces.values()):
        raise UsageError(f"{settings.namespace_tokens_file}: a namespace has the token of a role; change one")
    if not shared and not found:
        return dict.fromkeys((Role.GATEWAY.value, Role.CLIENT.value))
    if shared:
        for role in (Role.GATEWAY, Role.CLIENT):
            found.setdefault(role.value, shared)
    return found


def tokens_of_namespaces(settings: WireSettings) -> dict[str, str]:
    """The token of each namespace, which admits a client to that namespace only. Raises PenstockError."""
    file = settings.namespace_tokens_file
    if file is None:
        return {}
    check_secret(file)
    found: dict[str, str] = {}
    for number, line in enumerate(
        read_file(file, "wire.namespace_tokens_file").decode(errors="replace").splitlines(), 1
    ):
        name, _, token = line.strip().partition(" ")
        token = token.strip()
        if not name or name.startswith("#"):
            continue
        if not is_namespace(name):
            raise PenstockError(f"{file}: line {number}: {name[:40]!r} is not a namespace; it has {NAME_SHAPE}")
        if not token or name in found or token in found.values():
            raise PenstockError(f"{file}: line {number}: write one line for each namespace, with a token of its own")
        found[name] = token
    return found


def warn_of_shared_token(tokens: Tokens) -> None:
    """Log a warning if one token admits both gateways and clients."""
    if tokens.get(Role.GATEWAY) and tokens.get(Role.GATEWAY) == tokens.get(Role.CLIENT):
        log.warning(
            "wire.token lets every client act as a gateway, which may claim any session; "
            "set wire.gateway_token and wire.client_token instead"
        )


def _shared_token(settings: WireSettings) -> str:
    return _token(settings.token, settings.token_file, "wire.token", "so everybody would be let in")


def _tokens_by_role(settings: WireSettings, shared: str) -> dict[str, str]:
    """The tokens of single roles. Raises PenstockError."""
    given = (
        (Role.GATEWAY, settings.gateway_token, settings.gateway_token_file),
        (Role.CLIENT, settings.client_token, settings.client_token_file),
        (Role.OPERATOR, settings.operator_token, settings.operator_token_file),
    )
    roles: dict[str, str] = {shared: "wire.token"} if shared else {}
    found: dict[str, str] = {}
    for role, token, file in given:
        setting = f"wire.{role.value}_token"
        token = _token(token, file, setting, f"so no {role.value} would be admitted")
        if not token:
            continue
        if token in roles:
            raise UsageError(
                f"{setting} and {roles[token]} are the same, so one role could act as the other; change one"
            )
        roles[token] = setting
        found[role.value] = token
    return found


def token_of_command(wire: WireSettings, gateway: GatewaySettings) -> tuple[Role, str]:
    """Role and token of a command: the operators' token, else the clients', else the gateway's of these settings."""
    operator = _token(wire.operator_token, wire.operator_token_file, "wire.operator_token", "so no operator gets in")
    if operator:
        return Role.OPERATOR, operator
    own = _token(wire.client_token, wire.client_token_file, "wire.client_token", "so no client would be let in")
    return Role.CLIENT, own or token_of_gateway(gateway) or _shared_token(wire)


def token_of_client(wire: WireSettings) -> str:
    """The token of a client such as the console. Raises PenstockError."""
    own = _token(wire.client_token, wire.client_token_file, "wire.client_token", "so no client would be let in")
    return own or _shared_token(wire)


def token_of_operator(wire: WireSettings) -> str:
    """The token of an operator's command. Raises PenstockError."""
    return _token(
        wire.operator_token, wire.operator_token_file, "wire.operator_token", "so no operator would be let in"
    )


def token_of_gateway(settings: GatewaySettings) -> str:
    """The token of a gateway. Raises PenstockError."""
    return _token(
        settings.store_token, settings.store_token_file, "gateway.store_token", "so the store would refuse the gateway"
    )


def _token(token: str, file: Path | None, setting: str, if_empty: str) -> str:
    if file is None:
        return token
    if token:
        raise UsageError(f"{setting} and {setting}_file are both set; unset one")
    check_secret(file)
    token = read_file(file, f"{setting}_file", takes_pipes=True).decode(errors="replace").strip()
    if not token:
        raise UsageError(f"{file}: empty, {if_empty}; write the token into it")
    return token


def tls_of_store(settings: WireSettings) -> ssl.SSLContext:
    """Raises PenstockError."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        raise UsageError("a tls:// address needs wire.tls_certificate and wire.tls_key")
    context = server_context(certificate, key, "wire.tls_certificate", "wire.tls_key")
    ca_file, is_optional = settings.tls_client_ca_file, settings.tls_client_certificates == "optional"
    if ca_file is not None:
        _trust(context, ca_file, "wire.tls_client_ca_file")
        context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    elif settings.tls_roles:
        raise UsageError("wire.tls_roles needs certificates of peers: set wire.tls_client_ca_file as well")
    return context


def _trust(context: ssl.SSLContext, ca_file: Path, setting: str) -> None:
    """Trust certificates that an authority in this file signed. Raises PenstockError."""
    read_file(ca_file, setting)
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise PenstockError(f"{ca_file}: no certificates in PEM ({error.reason}); see {setting}") from None


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path, settings: tuple[str, str]) -> None:
    """Present this certificate. Raises PenstockError."""
    check_secret(key)
    read_file(certificate, settings[0])
    read_file(key, settings[1])
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        raise PenstockError(f"{certificate} and {key}: not a certificate with its key ({error.reason})") from None


def server_context(certificate: Path, key: Path, certificate_setting: str, key_setting: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, certificate, key, (certificate_setting, key_setting))
    return context


def tls_of_gateway(address: StoreAddress, settings: GatewaySettings) -> ssl.SSLContext | None:
    """The TLS context for this address; None if it is not a TLS address. Raises PenstockError."""
    file, certificate, key = settings.store_ca_file, settings.store_certificate, settings.store_key
    if (certificate is None) != (key is None):
        raise UsageError("gateway.store_certificate and gateway.store_key go together; set both")
    if not address.is_tls:
        for name, given in (("store_ca_file", file), ("store_certificate", certificate)):
            if given is not None:
                raise UsageError(f"gateway.{name} is for tls:// addresses, and {address.url} is not one; unset it")
        return None
    if file is not None:
        read_file(file, "gateway.store_ca_file")
    try:
        context = ssl.create_default_context(cafile=file)
    except ssl.SSLError as error:
        raise PenstockError(f"{file}: no certificates in PEM ({error.reason}); see gateway.store_ca_file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None and key is not None:
        _load_pair(context, certificate, key, ("gateway.store_certificate", "gateway.store_key"))
    return context
