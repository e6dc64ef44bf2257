"""The store in this process, as each of its users sees it."""
