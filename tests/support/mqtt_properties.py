"""All properties of MQTT 5.0, by hand from section 2.2.2.2 of the standard; no code of the project made them."""

from typing import Any

from gateway.mqtt.properties import PacketContext

TABLE: tuple[tuple[str, Any, str, str], ...] = (
    ("payload_format_indicator", 1, "01 01", "PUBLISH WILL"),
    ("message_expiry_interval", 2**32 - 1, "02 ffffffff", "PUBLISH WILL"),
    ("content_type", "t", "03 0001 74", "PUBLISH WILL"),
    ("response_topic", "r/t", "08 0003 722f74", "PUBLISH WILL"),
    ("correlation_data", b"\x00", "09 0001 00", "PUBLISH WILL"),
    ("subscription_identifiers", (200,), "0b c801", "PUBLISH SUBSCRIBE"),
    ("session_expiry_interval", 1, "11 00000001", "CONNECT CONNACK DISCONNECT"),
    ("assigned_client_identifier", "c", "12 0001 63", "CONNACK"),
    ("server_keep_alive", 0, "13 0000", "CONNACK"),
    ("authentication_method", "m", "15 0001 6d", "CONNECT CONNACK AUTH"),
    ("authentication_data", b"", "16 0000", "CONNECT CONNACK AUTH"),
    ("request_problem_information", True, "17 01", "CONNECT"),
    ("will_delay_interval", 0, "18 00000000", "WILL"),
    ("request_response_information", False, "19 00", "CONNECT"),
    ("response_information", "", "1a 0000", "CONNACK"),
    ("server_reference", "s", "1c 0001 73", "CONNACK DISCONNECT"),
    (
        "reason_string",
        "x",
        "1f 0001 78",
        "CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH",
    ),
    ("receive_maximum", 1, "21 0001", "CONNECT CONNACK"),
    ("topic_alias_maximum", 0, "22 0000", "CONNECT CONNACK"),
    ("topic_alias", 65_535, "23 ffff", "PUBLISH"),
    ("maximum_qos", 0, "24 00", "CONNACK"),
    ("retain_available", False, "25 00", "CONNACK"),
    ("user_properties", (("k", ""),), "26 0001 6b 0000", " ".join(c.name for c in PacketContext)),
    ("maximum_packet_size", 1, "27 00000001", "CONNECT CONNACK"),
    ("wildcard_subscription_available", True, "28 01", "CONNACK"),
    ("subscription_identifier_available", True, "29 01", "CONNACK"),
    ("shared_subscription_available", False, "2a 00", "CONNACK"),
)
"""One valid value of each: field, value, bytes, packets."""
