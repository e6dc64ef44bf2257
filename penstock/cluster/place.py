"""The place of the replicated log as the settings name it."""

from __future__ import annotations

from penstock.config.secret_files import check_secret, read_file
from penstock.config.settings import Settings
from penstock.errors import UsageError
from penstock.kafka_place import SAY_KAFKA_URL, KafkaLogin, KafkaPlace, named_place


def replicated_place(settings: Settings) -> KafkaPlace:
    """Raises PenstockError."""
    said, url = settings.cluster, settings.store.replicated_log
    if bool(said.kafka_user) != (said.kafka_password_file is not None):
        raise UsageError("cluster.kafka_user: a user comes with cluster.kafka_password_file; set both, or neither")
    password = ""
    if said.kafka_password_file is not None:
        check_secret(said.kafka_password_file)
        password = read_file(said.kafka_password_file, "cluster.kafka_password_file").decode(errors="replace").strip()
    login = KafkaLogin(said.kafka_user, password, said.kafka_mechanism, str(said.kafka_ca_file or ""))
    try:
        return named_place(url, login, "penstock-store", "penstock.cluster.kafka")
    except ValueError as error:
        raise UsageError(f"store.replicated_log: {error}; {SAY_KAFKA_URL}") from None
