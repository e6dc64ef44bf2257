"""Places of tables, for tests and for the processes that they start."""

from dataclasses import dataclass
from urllib.request import Request, urlopen

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


def judge_after(endpoint: str, requests: str) -> None:
    """Have moto look at rights after so many requests (inf: never); then nobody has any."""
    url = f"{endpoint}/moto-api/reset-auth"
    urlopen(Request(url, requests.encode(), {"Content-Type": "text/plain"}, method="POST"), timeout=10).close()
