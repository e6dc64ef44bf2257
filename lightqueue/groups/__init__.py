"""Positions of consumer groups in their queues."""
