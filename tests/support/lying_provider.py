"""A provider of OpenID Connect that lies, in a thread: each lie is one step of a login, the rest is as it has to be."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CLIENT = "penstock"
HUGE_BYTES = 8 << 20


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, 2_048)


class LyingProvider:
    """`lie`: what is wrong, in words; empty: nothing. `nonce`: of the login that is under way. `codes`: that it got."""

    def __init__(self) -> None:
        self.lie = self.nonce = self.user = ""
        self.keys = {"k1": new_key()}
        self.foreign = new_key()
        self.codes: list[dict[str, list[str]]] = []
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        lying = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                lying.answer(self, self.path, b"")

            def do_POST(self) -> None:
                lying.answer(self, self.path, self.rfile.read(int(self.headers["Content-Length"])))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, to: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        self.asked.append(path)
        where = {"/.well-known/openid-configuration": "metadata", "/jwks": "jwks", "/token": "token"}.get(path, "other")
        if where == "token":
            self.codes.append(parse_qs(body.decode()))
        if self.lie == f"slow {where}":
            self.may_answer.wait()
        status, data = 200, json.dumps(getattr(self, where)()).encode() if where != "other" else b"{}"
        if self.lie == f"huge {where}":
            data = b'{"a": "' + b"x" * HUGE_BYTES + b'"}'
        elif self.lie == f"no JSON of {where}":
            data = b"[" * 100_000
        elif self.lie == f"status of {where}":
            status = 500
        elif self.lie == f"redirect of {where}":
            status = 302
        try:
            to.send_response(status)
            if status == 302:
                to.send_header("Location", f"{self.url}/elsewhere")
            to.send_header("Content-Length", str(len(data)))
            to.end_headers()
            to.wfile.write(data)
        except OSError:  # it had enough
            pass

    def metadata(self) -> dict[str, Any]:
        lies = {"file": "file:///etc/passwd", "user": "http://u:p@127.0.0.1/token"}
        return {
            "issuer": "https://other.example" if self.lie == "another issuer in the metadata" else self.url,
            "authorization_endpoint": "javascript:alert(1)" if self.lie == "script" else f"{self.url}/authorize",
            "token_endpoint": lies.get(self.lie, f"{self.url}/token"),
            "jwks_uri": f"{self.url}/jwks",
        }

    def jwks(self) -> dict[str, Any]:
        found = []
        for name, key in self.keys.items():
            public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
            found.append({**public, "kid": name, "use": "sig"})
        if self.lie == "a shared secret as its key":
            secret = base64.urlsafe_b64encode(b"s" * 32).rstrip(b"=").decode()
            found = [{"kty": "oct", "k": secret, "kid": "k1", "use": "sig"}]
        return {"keys": found}

    def token(self) -> dict[str, Any]:
        answer = {"access_token": "at", "token_type": "Bearer", "id_token": self.id_token()}
        if self.lie == "no ID token":
            del answer["id_token"]
        return answer

    def id_token(self) -> str:
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url,
            "sub": self.user,
            "aud": CLIENT,
            "exp": now + 600,
            "iat": now,
            "nonce": self.nonce,
        }
        lies: dict[str, dict[str, Any]] = {
            "wrong iss": {"iss": "https://other.example"},
            "wrong aud": {"aud": "another client"},
            "a list of aud": {"aud": [CLIENT, "another client"]},
            "wrong azp": {"azp": "another client"},
            "wrong nonce": {"nonce": "of another login"},
            "expired": {"exp": now - 60, "iat": now - 600},
            "exp is text": {"exp": "tomorrow"},
            "exp is endless": {"exp": 1e308},
            "made in the future": {"iat": now + 3_600},
            "not yet": {"nbf": now + 3_600},
            "wrong at_hash": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"},
            "sub is a list": {"sub": ["alice"]},
            "sub is empty": {"sub": ""},
        }
        claims |= lies.get(self.lie, {})
        for name in ("iss", "sub", "aud", "exp", "iat", "nonce"):
            if self.lie == f"without {name}":
                del claims[name]
        return self.signed(claims)

    def signed(self, claims: dict[str, Any]) -> str:
        (name, key), *_ = reversed(self.keys.items())
        match self.lie:
            case "alg none":
                return _by_hand({"alg": "none", "kid": name}, claims, lambda _: b"")
            case "alg NonE without a signature":
                return _by_hand({"alg": "NonE", "kid": name}, claims, lambda _: b"")
            case "HS256 by the public key":
                pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                header = {"alg": "HS256", "kid": name}
                return _by_hand(header, claims, lambda data: hmac.digest(pem, data, hashlib.sha256))
            case "a shared secret as its key":
                return jwt.encode(claims, "s" * 32, "HS256", {"kid": name})
            case "HS256 by the client's secret":
                return jwt.encode(claims, "s3cret of the client, long enough", "HS256", {"kid": name})
            case "unknown kid":
                return jwt.encode(claims, self.foreign, "RS256", {"kid": "k9"})
            case "foreign key under a known kid":
                return jwt.encode(claims, self.foreign, "RS256", {"kid": name})
            case "its key in the header":
                own = jwt.algorithms.RSAAlgorithm.to_jwk(self.foreign.public_key(), as_dict=True)
                return jwt.encode(claims, self.foreign, "RS256", {"jwk": own})
            case "changed claims":
                head, _, signature = jwt.encode(claims, key, "RS256", {"kid": name}).split(".")
                return f"{head}.{_base64({**claims, 'sub': 'root'})}.{signature}"
            case "a very long token":
                return jwt.encode({**claims, "x": "y" * 20_000}, key, "RS256", {"kid": name})
        return jwt.encode(claims, key, "RS256", {"kid": name})


def _base64(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _by_hand(header: dict[str, str], claims: dict[str, Any], sign: Any) -> str:
    """What libraries refuse to write."""
    text = f"{_base64(header)}.{_base64(claims)}"
    return f"{text}.{_base64(sign(text.encode()))}"


@contextmanager
def lying_provider() -> Iterator[LyingProvider]:
    found = LyingProvider()
    serving = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield found
    finally:
        found.may_answer.set()
        found.server.shutdown()
        serving.join()
        found.server.server_close()
