"""Messages on their way to clients: subscriptions, shared subscriptions, QoS 2, replay, receipts, $SYS."""
