"""The complete MQTT 3.1.1 and 5.0 codec, without I/O.

It is written to be read, and knows every packet. Plain PUBLISH and PUBACK have a compiled leaf as well, which must
agree with this codec.
"""

from __future__ import annotations

from gateway.mqtt.codec_decode import decode
from gateway.mqtt.codec_encode import encode, success
from gateway.mqtt.codec_primitives import decode_varint, encode_varint

__all__ = ["decode", "decode_varint", "encode", "encode_varint", "success"]
