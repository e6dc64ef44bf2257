"""The listener of a Kafka broker with TLS and passwords, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from loadtest.ports import HOST, free_port
from tests.support.certificates import Certificate, authority, vouched_for

USER, PASSWORD = "flow", "s3cret-of-a-test"
MECHANISMS = ("PLAIN", "SCRAM-SHA-512")
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
ITERATIONS = 4_096
TIMEOUT_S = 120


@dataclass(frozen=True)
class KafkaSecured:
    """`authority` vouches for the certificate in `keys`, a file with its key; `stranger` does not."""

    authority: Certificate
    stranger: Certificate
    keys: Path
    port: int = field(default_factory=free_port)

    @classmethod
    def made(cls, folder: Path) -> KafkaSecured:
        signing = authority(folder, "kafka-authority")
        server = vouched_for(folder, "kafka-server", f"IP:{HOST}", signing)
        keys = folder / "kafka-keys.pem"
        keys.write_text(server.key.read_text() + server.certificate.read_text())
        return cls(signing, authority(folder, "kafka-stranger"), keys)

    @property
    def url(self) -> str:
        return f"{HOST}:{self.port}"

    def properties(self) -> dict[str, object]:
        of_listener = "listener.name.sasl_ssl"
        return {
            f"{of_listener}.ssl.keystore.type": "PEM",
            f"{of_listener}.ssl.keystore.location": self.keys,
            f"{of_listener}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{of_listener}.plain.sasl.jaas.config": f'{PLAIN_LOGIN} required user_{USER}="{PASSWORD}";',
            f"{of_listener}.scram-sha-512.sasl.jaas.config": f"{SCRAM_LOGIN} required;",
        }


def add_scram_user(admin: AdminClient) -> None:
    """Kafka keeps those of SCRAM itself."""
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    upsertion = UserScramCredentialUpsertion(USER, scram, PASSWORD.encode())
    admin.alter_user_scram_credentials([upsertion])[USER].result(TIMEOUT_S)
