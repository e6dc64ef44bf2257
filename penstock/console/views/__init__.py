"""What is computed of the answers of the store, without HTTP: pages of history, the index of topics, rates."""
