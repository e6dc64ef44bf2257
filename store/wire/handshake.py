"""The beginning of a connection: magic and Hello from one side, Welcome or Refused from the other. No I/O."""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from store.errors import HandshakeRefused, WireError
from store.wire.frames import HEAD, Readable, encode, read_frame, read_head
from store.wire.messages import Hello, Refused, RefusedReason, Role, Welcome, WireMessage

MAGIC = b"PENSTOCK"
NO_TOKENS: Mapping[str, str] = MappingProxyType({})
VERSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20)
OPERATORS_VERSION = 2  # from it on gateways are told of bans, and to disconnect clients
JUDGING_VERSION = 3  # from it on gateways are asked whether messages that are due may be sent
PACING_VERSION = 4  # from it on gateways say that they are behind, and are told that some are
RIGHTS_VERSION = 5  # from it on clients may ask what they may do, and operators about the server and topics
PAUSING_VERSION = 6  # from it on groups can be paused
DEAD_LETTERS_VERSION = 7  # from it on operators settle dead letters one by one
DESCRIBING_VERSION = 8  # from it on gateways describe their clients to the store
PENDING_VERSION = 9  # from it on clients may read a delayed message that is pending
LOGINS_VERSION = 10  # from it on a store and its gateways tell each other how logins ended
READABLE_VERSION = 11  # from it on clients may ask which topic filters they may subscribe to
GATEWAYS_VERSION = 12  # from it on gateways tell the store their figures
HOLDING_VERSION = 13  # from it on a client may hold the log, and operators see who reads it
PLACING_VERSION = 14  # from it on a consumer may ask where its group is
TABLE_VERSION = 15  # from it on the tier says where its table is, and readers of the log may ask
WORK_VERSION = 16  # from it on consumers tell how their work goes
COPY_VERSION = 17  # from it on another store of the cluster may copy the log
RECEIVERS_VERSION = 18  # from it on operators may ask who has received a message
TAGS_VERSION = 19  # from it on a group may have tags
PRIORITIES_VERSION = 20  # from it on its tags may have priorities
LASTING_VERSION = 20  # from it on leases may outlive a consumer, and tags of groups are listed
MOST_HELLO_BYTES = 32 << 10
MOST_WELCOME_BYTES = 1 << 20  # it lists the live_only filters

_STRANGERS = (
    (re.compile(rb"\x10"), "an MQTT client, which should connect to a gateway"),
    (re.compile(rb"\x16\x03"), "a TLS client, and this listener is without TLS"),
    (re.compile(rb"[A-Z]{3,7} "), "an HTTP client"),
)


def tags_version(expression: str) -> int:
    """The version from which on a group may have these tags; see tags_of()."""
    return PRIORITIES_VERSION if ">" in expression or expression == "*" else TAGS_VERSION


class ServerHandshake:
    """A store's side of the handshake. The time a peer may take is for the caller to bound."""

    def __init__(
        self,
        meet: Callable[[Hello], Welcome | Refused | None],
        tokens: Mapping[str, str | None],
        of_namespaces: Mapping[str, str] = NO_TOKENS,
    ) -> None:
        """`tokens`: the roles that are let in, each with the token to be shown (None: none). `of_namespaces`: those of
        clients of one namespace, by its name. `meet` is asked about who may come in; a Welcome is sent with the
        version that was chosen filled in. None: answer() will be told."""
        self._meet = meet
        self._of_namespaces = of_namespaces
        self._tokens = tokens
        self._received = bytearray()
        self._version = 0
        self._waiting: Hello | None = None
        self.hello: Hello | None = None  # who it is, once it is welcome
        self.refused: Refused | None = None  # why not; to be closed once the answer is sent

    @property
    def is_done(self) -> bool:
        return self.hello is not None or self.refused is not None or self._waiting is not None

    @property
    def rest(self) -> bytes:
        """The bytes after the Hello: the first bytes for a FrameReader."""
        return bytes(self._received)

    def feed(self, data: Readable) -> bytes:
        """Take input; returns the bytes to send."""
        received = self._received
        received += data
        if self.is_done or len(received) < len(MAGIC):
            return b""
        if not received.startswith(MAGIC):
            return self._refuse(RefusedReason.NOT_PENSTOCK, f"this is a Penstock store; the peer is {_guess(received)}")
        try:
            hello = _first_message(received, len(MAGIC), MOST_HELLO_BYTES, Role.CLIENT)
            if hello is None:
                return b""
        except WireError as error:
            return self._refuse(RefusedReason.BAD_HELLO, str(error))
        if not isinstance(hello, Hello):
            return self._refuse(RefusedReason.BAD_HELLO, f"{type(hello).__name__} where a Hello should be")
        return self._answer(hello)

    def _answer(self, hello: Hello) -> bytes:
        version = max(set(hello.versions) & set(VERSIONS), default=0)
        if not version:
            ours, theirs = _listed(VERSIONS), _listed(hello.versions)
            return self._refuse(RefusedReason.VERSION, f"the store speaks version {ours} of the protocol, not {theirs}")
        if hello.role not in self._tokens:
            return self._refuse(RefusedReason.ROLE, f"nobody is let in here as {hello.role!r}")
        token = self._tokens[hello.role]
        namespace = self._namespace_of_token(hello)
        if namespace is not None:
            if hello.namespace not in ("", namespace):
                return self._refuse(RefusedReason.TOKEN, f"not the token of namespace {hello.namespace[:64]!r}")
            hello = msgspec.structs.replace(hello, namespace=namespace)
        elif token is not None and not same_token(token, hello.token):
            return self._refuse(RefusedReason.TOKEN, f"not the token of a {hello.role}")
        self._version = version
        self._waiting = hello
        answer = self._meet(hello)
        return self.answer(answer) if answer is not None else b""

    @property
    def is_waiting(self) -> bool:
        """Whether answer() is still to be called."""
        return self._waiting is not None

    def answer(self, answer: Welcome | Refused) -> bytes:
        """Whether a peer that was met is let in; returns the bytes to send."""
        hello, self._waiting = self._waiting, None
        if isinstance(answer, Refused):
            self.refused = answer
            return encode(answer)
        self.hello = hello
        return encode(msgspec.structs.replace(answer, version=self._version))

    def _namespace_of_token(self, hello: Hello) -> str | None:
        """The namespace whose clients alone have this token; None: it is no namespace's token."""
        found = None
        for name, token in self._of_namespaces.items() if hello.role == Role.CLIENT else ():
            if same_token(token, hello.token):
                found = name
        return found

    def _refuse(self, reason: RefusedReason, message: str) -> bytes:
        self.refused = Refused(reason, message)
        return encode(self.refused)


class ClientHandshake:
    """The handshake of a gateway or a client."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._received = bytearray()
        self.greeting = MAGIC + encode(hello)  # to be sent first
        self.welcome: Welcome | None = None

    @property
    def rest(self) -> bytes:
        """The bytes after the Welcome: the first bytes for a FrameReader."""
        return bytes(self._received)

    def feed(self, data: Readable) -> Welcome | None:
        """Take what came; the Welcome, once it is there. Raises HandshakeRefused or WireError."""
        self._received += data
        if self.welcome is None:
            try:
                self.welcome = self._answer()
            except WireError as error:
                raise WireError(f"no Penstock store answers here: {error}") from None
        return self.welcome

    def _answer(self) -> Welcome | None:
        answer = _first_message(self._received, 0, MOST_WELCOME_BYTES, Role.STORE)
        match answer:
            case None:
                return None
            case Welcome() if answer.version in self._hello.versions:
                return answer
            case Refused():
                raise HandshakeRefused(answer.reason, answer.message, answer.retry_s, answer.leader)
        raise WireError(f"{type(answer).__name__} in answer to a Hello")


def _first_message(received: bytearray, start: int, max_bytes: int, peer: Role) -> WireMessage | None:
    """The message of a frame that begins at `start`, taken from what was received; None until it is all there."""
    if len(received) < start + HEAD.size:
        return None
    head = read_head(received, start, max_bytes, peer)
    end = start + head[-1]
    if len(received) < end:
        return None
    message = read_frame(memoryview(bytes(received[start:end])), head).message
    del received[:end]
    return message


def _guess(received: bytearray) -> str:
    """A guess, for people, about a peer that sends no magic."""
    return next((who for pattern, who in _STRANGERS if pattern.match(received)), "neither a gateway nor a client of it")


def same_token(one: str, other: str) -> bool:
    """Compare tokens, in a time that does not depend on them."""
    return hmac.compare_digest(_digest(one), _digest(other))


def _digest(token: str) -> bytes:
    """A digest of a token: all have one length, so a comparison takes the same time for each."""
    return hashlib.sha256(token.encode()).digest()


def _listed(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))
