"""The wire protocol between a store and its gateways, clients and Spark: bytes in, messages out; no I/O."""
