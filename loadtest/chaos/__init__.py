"""Faults on a running deployment under load, and a ledger that checks which promises it kept."""
