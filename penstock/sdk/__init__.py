"""The native client. Of the other parts it knows the store's wire and records only."""
