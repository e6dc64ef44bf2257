"""The rules by which several stores keep one log, in one partition of Kafka: no I/O, and all clocks are passed in."""
