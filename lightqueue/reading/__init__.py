"""Reads ranges of messages by position, time, key or filter."""
