"""The cold tier: history older than the log, as one open table in object storage or a folder (docs/tier.md)."""
