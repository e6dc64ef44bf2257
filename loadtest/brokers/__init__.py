"""The brokers that are compared, how each is started, and the comparison side by side."""
