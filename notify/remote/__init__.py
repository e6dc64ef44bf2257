"""The store in another process, as a gateway sees it."""
