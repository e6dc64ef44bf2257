"""Load for MQTT brokers: simulated devices, workloads, side-by-side runs."""
