"""The rights and limits of clients."""
