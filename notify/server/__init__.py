"""The wire server of a store."""
