"""What a store and its gateways know each other by: tokens and certificates, out of the files that settings name."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path

from gateway.settings import GatewaySettings
from notify.address import StoreAddress
from notify.settings import WireSettings
from penstock.errors import PenstockError, UsageError
from store.wire.messages import Role

log = logging.getLogger("penstock")


Tokens = Mapping[str, str | None]
"""By role, what a peer has to show (None: nothing). A role that is missing is not let in."""


def tokens_of_store(settings: WireSettings) -> Tokens:
    """Raises PenstockError."""
    shared = _shared_token(settings)
    found: dict[str, str | None] = dict(_tokens_by_role(settings, shared))
    if not shared and not found:
        return dict.fromkeys((Role.GATEWAY.value, Role.CLIENT.value))
    if shared:
        if Role.GATEWAY not in found and Role.CLIENT not in found:
            log.warning(
                "wire.token lets every client act as a gateway, which may claim any session; "
                "set wire.gateway_token and wire.client_token instead"
            )
        for role in (Role.GATEWAY, Role.CLIENT):
            found.setdefault(role.value, shared)
    return found


def _shared_token(settings: WireSettings) -> str:
    return _token(settings.token, settings.token_file, "wire.token", "so everybody would be let in")


def _tokens_by_role(settings: WireSettings, shared: str) -> dict[str, str]:
    """The tokens that are of one role. Raises PenstockError."""
    given = (
        (Role.GATEWAY, settings.gateway_token, settings.gateway_token_file),
        (Role.CLIENT, settings.client_token, settings.client_token_file),
        (Role.OPERATOR, settings.operator_token, settings.operator_token_file),
    )
    roles: dict[str, str] = {shared: "wire.token"} if shared else {}
    found: dict[str, str] = {}
    for role, token, file in given:
        setting = f"wire.{role.value}_token"
        token = _token(token, file, setting, f"so no {role.value} would be let in")
        if not token:
            continue
        if token in roles:
            raise UsageError(
                f"{setting} and {roles[token]} are the same, so one role could act as the other; change one"
            )
        roles[token] = setting
        found[role.value] = token
    return found


def token_of_command(wire: WireSettings, gateway: GatewaySettings) -> str:
    """What a command shows that connects as a client: the clients' token, else what a gateway here shows."""
    own = _token(wire.client_token, wire.client_token_file, "wire.client_token", "so no client would be let in")
    return own or token_of_gateway(gateway) or _shared_token(wire)


def token_of_gateway(settings: GatewaySettings) -> str:
    """What a gateway shows. Raises PenstockError."""
    return _token(settings.store_token, settings.store_token_file, "gateway.store_token", "so nobody would let it in")


def _token(token: str, file: Path | None, setting: str, if_empty: str) -> str:
    if file is None:
        return token
    if token:
        raise UsageError(f"{setting} and {setting}_file are both set; unset one")
    token = _read(file, f"{setting}_file").decode(errors="replace").strip()
    if not token:
        raise UsageError(f"{file}: empty, {if_empty}; write the token into it")
    return token


def tls_of_store(settings: WireSettings) -> ssl.SSLContext:
    """Raises PenstockError."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        raise UsageError("a tls:// address needs wire.tls_certificate and wire.tls_key")
    return _server_context(certificate, key, "wire.tls_certificate", "wire.tls_key")


def _server_context(certificate: Path, key: Path, certificate_setting: str, key_setting: str) -> ssl.SSLContext:
    _read(certificate, certificate_setting)
    _read(key, key_setting)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        raise PenstockError(f"{certificate} and {key}: not a certificate with its key ({error.reason})") from None
    return context


def tls_for_clients(settings: GatewaySettings) -> ssl.SSLContext | None:
    """What mqtts:// and wss:// are secured with; None if nothing is set for it. Raises PenstockError."""
    certificate, key, ca_file = settings.tls_certificate, settings.tls_key, settings.tls_client_ca_file
    asks = settings.tls_client_certificates
    if (ca_file is None) != (asks == "no"):
        what = "optional or required" if asks == "no" else "the file with who vouches for them"
        missing = "gateway.tls_client_certificates" if asks == "no" else "gateway.tls_client_ca_file"
        raise UsageError(f"certificates of clients: {missing} is to be {what}")
    if settings.tls_client_crl_file is not None and ca_file is None:
        raise UsageError(
            "gateway.tls_client_crl_file revokes certificates of clients; set gateway.tls_client_ca_file too"
        )
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("gateway.tls_certificate and gateway.tls_key go together; set both")
    context = _server_context(certificate, key, "gateway.tls_certificate", "gateway.tls_key")
    context.num_tickets = 1  # each costs a handshake some 5 % more; a device resumes one session at a time
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if ca_file is not None:
        _read(ca_file, "gateway.tls_client_ca_file")
        try:
            context.load_verify_locations(ca_file)
        except ssl.SSLError as error:
            raise PenstockError(
                f"{ca_file}: no certificates in PEM ({error.reason}); see gateway.tls_client_ca_file"
            ) from None
        if settings.tls_client_crl_file is not None:
            _refuse_revoked(context, settings.tls_client_crl_file)
        context.verify_mode = ssl.CERT_REQUIRED if asks == "required" else ssl.CERT_OPTIONAL
    return context


def _refuse_revoked(context: ssl.SSLContext, crl_file: Path) -> None:
    """Each certificate of a client has to be in no list of its issuer's, which has to be there and up to date.

    By default the ssl module would ignore lists that it has loaded.
    """
    if b"-----BEGIN X509 CRL-----" not in _read(crl_file, "gateway.tls_client_crl_file"):
        raise PenstockError(f"{crl_file}: no revocation list in PEM; see gateway.tls_client_crl_file")
    try:
        context.load_verify_locations(crl_file)
    except ssl.SSLError as error:
        raise PenstockError(
            f"{crl_file}: no revocation list in PEM ({error.reason}); see gateway.tls_client_crl_file"
        ) from None
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def tls_of_gateway(address: StoreAddress, settings: GatewaySettings) -> ssl.SSLContext | None:
    """Whom to trust at this address; None if it is not one for TLS. Raises PenstockError."""
    file = settings.store_ca_file
    if not address.is_tls:
        if file is not None:
            raise UsageError(f"gateway.store_ca_file is for tls:// addresses, and {address.url} is none; unset one")
        return None
    if file is not None:
        _read(file, "gateway.store_ca_file")
    try:
        context = ssl.create_default_context(cafile=file)
    except ssl.SSLError as error:
        raise PenstockError(f"{file}: no certificates in PEM ({error.reason}); see gateway.store_ca_file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read(file: Path, setting: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PenstockError(f"{file}: {error.strerror}; name a readable file with {setting}") from None
