"""Users of a store without sockets or files: their tokens prove who they are, and rules say what they may do."""

from __future__ import annotations

import tomllib

import jwt

from gateway.auth.access import AccessParts
from gateway.auth.permissions import parse_permissions
from gateway.auth.settings import AuthSettings
from gateway.auth.tokens import TokenCheck, secret_key
from penstock.servers.store_users import StoreUsers
from tests.support.mqtt_packet_client import access_of

SECRET = b"a secret of tests that is long enough"
SETTINGS = AuthSettings(jwt_require_exp=False, jwt_namespace_claim="namespace")


def users_of(rules: str = "") -> StoreUsers:
    """Judges clients by their tokens and by a permissions file; without rules there is no such file."""
    permissions = parse_permissions(tomllib.loads(rules)) if rules else None
    check = TokenCheck(SETTINGS, [secret_key(SECRET)], None)
    return StoreUsers(access_of(AccessParts(authenticators=(check,), permissions=permissions)))


def token(user: str, **claims: str) -> str:
    return jwt.encode({"sub": user, **claims}, SECRET, "HS256")
