"""A coverage-guided run on the codec (`make fuzz`): any bytes are a packet or a ProtocolError, and a packet comes back.

    python -m tests.fuzz.codec FOLDER tests/fuzz/corpus -max_total_time=60

An input is the version (its lowest bit), the packet's first byte, and its body. It takes atheris (the extra `fuzz`).
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["gateway"]):
    from tests.fuzz.check import check


def main() -> None:
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
