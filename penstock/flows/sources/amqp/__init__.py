"""Flows from a queue of AMQP 0-9-1: its messages, and how each is stored once."""
