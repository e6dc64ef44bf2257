"""The files that `penstock init --secure` writes for operators to read and change, and its next steps."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

OPERATOR = "operator"
PORT = 8883

SETTINGS = """\
# Penstock for 10,000 devices, each with a certificate of its own. All other settings: docs/settings.md
admin = "127.0.0.1:9464" # health and metrics, without a password: for this machine only

[store]
data = {data}
flush = "sync" # acknowledged messages are on disk
retention_bytes = 53687091200 # 50 GiB of messages; then the oldest are dropped
retention_age_s = 2592000 # 30 days

[gateway]
listen = ["mqtts://0.0.0.0:8883"] # TLS only, no plain MQTT
tls_certificate = {server_certificate}
tls_key = {server_key}
tls_client_certificates = "required"
tls_client_ca_file = {ca_certificate}
tls_client_crl_file = {crl}
max_connections = 12000
max_connections_per_address = 1000 # raise it where more devices share one address (NAT)
listener_connects_per_s = 500 # after an outage all are back within half a minute
max_keep_alive_s = 600
maximum_packet_size_bytes = 131072
receive_maximum = 64
max_inflight = 64
max_subscriptions_per_session = 50
max_session_expiry_s = 604800 # a device may be away for a week
receipts = "off" # devices do not learn how much others publish
store_token_file = {gateway_token} # for `penstock gateway`, which presents it to `penstock store`

[auth]
client_certificates = true # the common name of a certificate is the user name of its device
client_ids = "%u" # and its client identifier, so no device can open the session of another one
permissions_file = {permissions}
password_file = {passwords} # of the operator, for the console; devices need a certificate all the same

# The console (HTTP API and pages) is on this machine only. For others, here by HTTPS:
# [console]
# listen = "0.0.0.0:8443"
# hosts = ["mqtt.example.com"] # its name in the address bar, which the certificate has to have
# tls_certificate = {server_certificate}
# tls_key = {server_key}

[quota]
client_messages_per_s = 50
client_bytes_per_s = 262144
burst_ms = 5000
user_connections = 2 # a device, and its next connection while the old one is dead but not yet closed
user_sessions = 2
user_subscriptions = 50
user_groups = 5
user_topics = 12000 # the operator may send a message to each device
user_delayed = 100
user_retained = 100
user_retained_bytes = 1048576
user_waiting_bytes = 4194304

# Read by `penstock store` and `penstock gateway`, if you run them apart; `penstock serve` opens no such port.
[wire]
gateway_token_file = {gateway_token}
client_token_file = {client_token}
operator_token_file = {operator_token}
"""

PERMISSIONS = """\
# Permissions; docs/security.md. The first rule that matches the user, the action and the topic decides.
default = "deny"

[[rule]]
users = ["operator"]
allow = ["publish", "retain", "subscribe", "replay", "read_log", "admin"]
topics = ["#", "$SYS/#", "$dead/#"]

[[rule]] # each device below its own name, and nowhere else
allow = ["publish", "retain", "subscribe"]
topics = ["devices/%u/#"]
max_qos = 1
"""

PASSWORDS = "# Hashes of passwords; `penstock passwd` changes them.\n"


def next_steps(folder: Path, host: str, device: str) -> str:
    """The commands to type, each on an indented line of its own."""

    def line(*words: str | Path) -> str:
        return "  " + shlex.join(str(word) for word in words)

    def files(name: str) -> tuple[str | Path, ...]:
        pair = (folder / "clients" / f"{name}.pem", folder / "clients" / f"{name}.key")
        return ("--cafile", folder / "ca.pem", "--cert", pair[0], "--key", pair[1], "-i", name)

    url = f"mqtts://[{host}]:{PORT}" if ":" in host else f"mqtts://{host}:{PORT}"
    mosquitto = ("-h", host, "-p", str(PORT))
    topic = f"devices/{device}/temperature"
    lines = [
        "Start the server as the user that owns these files:",
        line("penstock", "serve", "--config", folder / "penstock.toml"),
        "In a second terminal, see what devices publish:",
        line("mosquitto_sub", *mosquitto, *files(OPERATOR), "-t", "devices/#", "-v"),
        "In a third one, publish as a device; its files are what a device needs, with ca.pem:",
        line("mosquitto_pub", *mosquitto, *files(device), "-q", "1", "-t", topic, "-m", "21.5"),
        line("penstock", "pub", topic, "-m", "21.5", "-q", "1", "--url", url, *files(device)),
        f"Open the console, whose address the server prints, and log in as {OPERATOR} with this password:",
        line("cat", folder / "clients" / f"{OPERATOR}.password"),
        "Later: another device, a new certificate before the old one ends in two years, the end of a device:",
        line("penstock", "init", "--secure", folder, "--add-device", "pump-7"),
        line("penstock", "init", "--secure", folder, "--renew", device),
        line("penstock", "init", "--secure", folder, "--revoke", device),
        f"Then move {folder / 'ca.key'} to a safe place: it can make any device's certificate. These commands need it.",
    ]
    return "\n".join(lines)


def names_of(devices: str) -> Sequence[str]:
    """`3` stands for three names, anything else is names with commas in between."""
    if devices.isascii() and devices.isdigit():
        return [f"device-{number}" for number in range(1, int(devices) + 1)]
    return [name.strip() for name in devices.split(",") if name.strip()]
