"""Faults on a running deployment, under load, and a ledger that tells which promises it kept."""
