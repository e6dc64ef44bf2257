"""Places of tables, for tests and for the processes that they start."""

from dataclasses import dataclass

BUCKET = "fleet"


@dataclass(frozen=True)
class TablePlace:
    """The URL of a table, and the options of its object store."""

    url: str
    options: dict[str, str]


def s3_options(endpoint: str) -> dict[str, str]:
    return {
        "aws_endpoint": endpoint,
        "aws_access_key_id": "penstock",
        "aws_secret_access_key": "a secret",
        "aws_region": "us-east-1",
        "allow_http": "true",
        "max_retries": "2",
        "retry_timeout": "10s",
    }
