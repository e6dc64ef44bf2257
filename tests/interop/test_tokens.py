"""JSON Web Tokens as passwords, with real keys of every kind."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ONE_PROCESS_BY_DAY, ServerFactory, SharedServers
from tests.support.http_answers import HttpAnswers
from tests.support.mqtt_packet_client import Device, reload, until, write_secret
from tests.support.server_process import PenstockServer

pytestmark = ONE_PROCESS_BY_DAY

SECRET = "a secret of more than thirty-two bytes, or sixty-four as some want them"
RSA_KEY = rsa.generate_private_key(65_537, 2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
BAD = ReasonCode.BAD_USER_NAME_OR_PASSWORD
OK = ReasonCode.SUCCESS


def pem(key: Any) -> str:
    return str(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def jwk(key: Any, algorithm: str, **more: Any) -> dict[str, Any]:
    of: Any = {"R": RSAAlgorithm, "E": ECAlgorithm}[algorithm[0]] if algorithm != "EdDSA" else OKPAlgorithm
    return {**of.to_jwk(key.public_key(), as_dict=True), **more}


def token(key: Any, algorithm: str, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    return jwt.encode({"sub": "alice", "exp": int(time.time()) + 3_600, **claims}, key, algorithm, headers=headers)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.pem"
    file.write_text(pem(RSA_KEY) + pem(EC_KEY) + "\n" + pem(ED_KEY))
    return file


@pytest.fixture
def server(shared_server: SharedServers, keys: Path) -> PenstockServer:
    secret = write_secret(keys.with_name("secret"), SECRET + "\n")
    return shared_server(settings={"auth.jwt_secret_file": secret, "auth.jwt_keys_file": keys})


def answer(server: PenstockServer, password: str, version: int = 5, client_id: str = "d") -> ReasonCode:
    return Device(server.port, client_id, version).connect("whoever", password).reason_code


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (SECRET, "HS256"),
        (SECRET, "HS512"),
        (RSA_KEY, "RS256"),
        (RSA_KEY, "PS384"),
        (EC_KEY, "ES256"),
        (ED_KEY, "EdDSA"),
    ],
    ids=lambda each: each if isinstance(each, str) and len(each) < 9 else "",
)
@pytest.mark.catalogue("G27")
def test_every_kind_of_signature(server: PenstockServer, version: int, key: Any, algorithm: str) -> None:
    good = token(key, algorithm)
    assert answer(server, good, version) is OK
    head, claims, signature = good.split(".")
    other = base64.urlsafe_b64encode(b'{"sub":"admin"}').decode().rstrip("=")
    assert answer(server, f"{head}.{other}.{signature}", version) is BAD
    assert answer(server, f"{head}.{claims}.", version) is BAD


def forged(algorithm: str, secret: str) -> str:
    """Signed by hand, since libraries refuse to."""
    parts = [json.dumps({"alg": algorithm, "typ": "JWT"}), json.dumps({"sub": "admin", "exp": 9_999_999_999})]
    text = ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    signature = hmac.digest(secret.encode(), text.encode(), hashlib.sha256) if secret else b""
    return text + "." + base64.urlsafe_b64encode(signature).decode().rstrip("=")


def test_algorithms_cannot_be_confused(server: PenstockServer) -> None:
    for algorithm in ("none", "None", "NONE", "", "HS256", "RS256"):
        assert answer(server, forged(algorithm, "")) is BAD
    for key in (RSA_KEY, EC_KEY, ED_KEY):
        for text in (pem(key), pem(key).strip(), pem(key).replace("\n", "")):
            assert answer(server, forged("HS256", text)) is BAD
            assert answer(server, forged("RS256", text)) is BAD
    other = rsa.generate_private_key(65_537, 2_048)
    assert answer(server, token(other, "RS256")) is BAD
    assert answer(server, token(other, "RS256", {"jwk": jwk(other, "RS256"), "jku": "http://127.0.0.1:1/"})) is BAD


def test_claims_are_looked_at(penstock_server: ServerFactory, keys: Path) -> None:
    settings = {"keys_file": keys, "issuer": "us", "audience": "mqtt", "client_id_claim": "cid", "leeway_s": 5}
    server = penstock_server(settings={f"auth.jwt_{name}": value for name, value in settings.items()})
    now = int(time.time())
    good = {"iss": "us", "aud": ["mqtt", "x"], "exp": now + 3_600}
    for claims, expected in (
        (good, OK),
        (good | {"cid": "d"}, OK),
        (good | {"cid": "e"}, BAD),
        (good | {"iss": "them"}, BAD),
        ({"iss": "us", "exp": now + 3_600}, BAD),
        ({"iss": "us", "aud": "mqtt"}, BAD),
        (good | {"exp": None}, BAD),
        (good | {"aud": "other"}, BAD),
        (good | {"exp": now - 3}, OK),
        (good | {"exp": now - 60}, BAD),
        (good | {"exp": "soon"}, BAD),
        (good | {"nbf": now + 60}, BAD),
        (good | {"sub": ""}, BAD),
        (good | {"sub": 7}, BAD),
        (good | {"permissions": "all"}, BAD),
    ):
        assert answer(server, jwt.encode({"sub": "alice", **claims}, ED_KEY, "EdDSA")) is expected, claims


def signed(claims: str, header: str = '{"alg": "HS256"}') -> str:
    """By hand, since libraries write no such claims."""
    parts = [base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in (header, claims)]
    signature = hmac.digest(SECRET.encode(), ".".join(parts).encode(), hashlib.sha256)
    return ".".join((*parts, base64.urlsafe_b64encode(signature).decode().rstrip("=")))


def test_claims_that_no_library_writes(server: PenstockServer) -> None:
    """Whoever has the secret may write them: they are refused, and nothing else comes of it."""
    many = json.dumps([{"allow": ["publish"], "topics": ["a"]}] * 101)
    times = (
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "1e300",
        "1" + "0" * 4_000,
        "1" + "0" * 9_000,
        "true",
        '"4e9"',
        "[]",
    )
    for more in (
        *(f'"exp": {exp}' for exp in times),
        *(f'"nbf": {nbf}' for nbf in ("NaN", "1e400", "[]")),
        f'"permissions": {many}',
        '"permissions": [{"allow": [[]], "topics": ["#"]}]',
        f'"x": {"[" * 20_000}{"]" * 20_000}',
    ):
        assert answer(server, signed(f'{{"sub": "alice", {more}}}')) is BAD, more[:40]
    for header in ("[" * 20_000, '{"alg": ["HS256"]}', '{"alg": "HS256", "kid": {}}', '{"alg": NaN}'):
        assert answer(server, signed('{"sub": "alice"}', header)) is BAD, header[:40]
    assert answer(server, signed('{"sub": "alice", "exp": 4000000000.5}')) is OK
    assert "Traceback" not in server.log_text()


@pytest.mark.catalogue("G27")
def test_permissions_come_from_claims(server: PenstockServer) -> None:
    rules = [
        {"deny": ["publish"], "topics": ["a/no"]},
        {"allow": ["publish", "subscribe"], "topics": ["a/+", "u/%u/+"], "max_qos": 1},
    ]
    device = Device(server.port, "d")
    assert device.connect("bob", token(ED_KEY, "EdDSA", permissions=rules)).reason_code is OK
    assert device.published("a/yes") is OK
    assert device.published("a/no") is ReasonCode.NOT_AUTHORIZED
    assert device.published("u/alice/d") is OK
    assert device.published("u/bob/d") is ReasonCode.NOT_AUTHORIZED
    assert device.published("a/yes", retain=True) is ReasonCode.NOT_AUTHORIZED
    assert device.subscribe("a/+", 2) is ReasonCode.GRANTED_QOS_1
    assert device.subscribe("#") is ReasonCode.NOT_AUTHORIZED


def test_a_token_that_would_be_good_for_ever(penstock_server: ServerFactory, keys: Path) -> None:
    for_ever = jwt.encode({"sub": "alice"}, ED_KEY, "EdDSA")
    server = penstock_server(settings={"auth.jwt_keys_file": keys})
    assert answer(server, for_ever) is BAD
    until(lambda: "token: has no `exp`" in server.log_text())
    server.restart({"auth.jwt_require_exp": False})
    assert answer(server, for_ever) is OK


def test_rules_of_a_token_for_a_client_identifier_that_is_not_its_own(
    penstock_server: ServerFactory, keys: Path
) -> None:
    rules = [{"allow": ["publish"], "topics": ["a/%c/#"]}]
    settings = {"auth.jwt_keys_file": keys, "auth.jwt_client_id_claim": "cid"}
    server = penstock_server(settings=settings)
    assert answer(server, token(ED_KEY, "EdDSA", permissions=rules)) is ReasonCode.NOT_AUTHORIZED
    until(lambda: "its rules have %c, the client identifier, and user alice may have any" in server.log_text())
    assert answer(server, token(ED_KEY, "EdDSA", permissions=rules, cid="other")) is BAD
    device = Device(server.port, "d")
    assert device.connect("x", token(ED_KEY, "EdDSA", permissions=rules, cid="d")).reason_code is OK
    assert device.published("a/d/x") is OK
    assert device.published("a/e/x") is ReasonCode.NOT_AUTHORIZED


def test_connections_end_with_the_key_of_their_token(
    penstock_server: ServerFactory, tmp_path: Path, keys: Path
) -> None:
    secret = write_secret(tmp_path / "secret", SECRET)
    server = penstock_server(settings={"auth.jwt_secret_file": secret, "auth.jwt_keys_file": keys}).one_gateway()
    devices = [Device(server.port, "a"), Device(server.port, "b", 4), Device(server.port, "c")]
    for device, key in zip(devices, ((SECRET, "HS256"), (SECRET, "HS512"), (ED_KEY, "EdDSA")), strict=True):
        assert device.connect("x", token(*key)).reason_code is OK
    secret.write_text("another secret, and one of more than thirty-two bytes")
    reload(server)
    assert devices[0].closed_with() is ReasonCode.NOT_AUTHORIZED
    assert devices[1].receive() is None
    assert devices[2].published("a") is OK
    assert "the key of its token was taken away" in server.log_text()


def test_connections_end_with_a_key_that_its_address_has_no_more(
    penstock_server: ServerFactory, jwks: HttpAnswers
) -> None:
    server = penstock_server(settings={"auth.jwt_keys_url": jwks.url}).one_gateway()
    device = Device(server.port, "d")
    assert device.connect("x", token(ED_KEY, "EdDSA")).reason_code is OK
    jwks.respond = lambda path, body: (200, {"keys": [jwk(EC_KEY, "ES256", kid="4", alg="ES256")]})
    reload(server)
    assert device.closed_with() is ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("version", [4, 5])
def test_a_connection_ends_with_its_token(penstock_server: ServerFactory, keys: Path, version: int) -> None:
    server = penstock_server(settings={"auth.jwt_keys_file": keys, "auth.jwt_leeway_s": 0})
    device, other = Device(server.port, "d", version), Device(server.port, "e")
    assert other.connect("x", token(ED_KEY, "EdDSA", exp=int(time.time()) + 3600)).reason_code is OK
    expires = int(time.time()) + 2
    assert device.connect("x", token(ED_KEY, "EdDSA", exp=expires)).reason_code is OK
    assert device.closed_with() is (ReasonCode.MAXIMUM_CONNECT_TIME if version == 5 else None)
    assert time.time() >= expires
    assert other.published("a") is OK


@pytest.fixture
def jwks() -> Iterator[HttpAnswers]:
    keys = [jwk(ED_KEY, "EdDSA", kid="1"), {"kty": "unheard-of"}, jwk(RSA_KEY, "RS256", kid="2", use="enc")]
    answers = HttpAnswers(lambda path, body: (200, {"keys": keys}))
    yield answers
    answers.close()


def test_keys_from_an_address(penstock_server: ServerFactory, jwks: HttpAnswers) -> None:
    server = penstock_server(settings={"auth.jwt_keys_url": jwks.url, "auth.jwt_issuer": ""})
    assert answer(server, token(ED_KEY, "EdDSA", {"kid": "1"})) is OK
    assert answer(server, token(ED_KEY, "EdDSA")) is OK
    assert answer(server, token(ED_KEY, "EdDSA", {"kid": "3"})) is BAD
    assert answer(server, token(RSA_KEY, "RS256", {"kid": "2"})) is BAD
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET.encode()).decode(), "kid": "s"}
    jwks.respond = lambda path, body: (200, {"keys": [jwk(EC_KEY, "ES256", kid="4", alg="ES256"), secret]})
    reload(server)
    until(lambda: all(answer(server, token(EC_KEY, "ES256", {"kid": "4"})) is OK for _ in range(2)))  # every gateway
    assert answer(server, token(ED_KEY, "EdDSA", {"kid": "1"})) is BAD
    assert answer(server, token(SECRET, "HS256", {"kid": "s"})) is BAD
    jwks.respond = lambda path, body: (500, {})
    reload(server)
    until(lambda: "could not be fetched" in server.log_text())
    assert answer(server, token(EC_KEY, "ES256", {"kid": "4"})) is OK
    assert len(jwks.asked) < 8  # unknown keys do not have it asked each time


@pytest.mark.parametrize(
    ("setting", "text", "complaint"),
    [
        ("jwt_secret_file", "short", "can be guessed"),
        ("jwt_keys_file", "nothing", "neither a JWKS nor a public key"),
        ("jwt_keys_file", '{"keys": []}', "has no key"),
        ("jwt_keys_file", "{", "not JSON"),
        ("jwt_keys_file", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "damaged"),
        ("jwt_keys_file", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "private key"),
        ("http_header_file", "nonsense", "header line"),
        ("jwt_keys_file", None, "No such file"),
    ],
)
def test_wrong_files_are_one_line(
    penstock_server: ServerFactory, tmp_path: Path, setting: str, text: str | None, complaint: str
) -> None:
    file = tmp_path / "file"
    if text is not None:
        write_secret(file, text)
    with pytest.raises(RuntimeError, match=f"penstock: {file}: .*{complaint}"):
        penstock_server(settings={f"auth.{setting}": file})
