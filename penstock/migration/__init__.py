"""What other brokers' configuration is here: `penstock migrate`."""
