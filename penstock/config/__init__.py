"""Settings, and the files and documents that belong to them."""
