"""What users of a store ask over the wire, and the answers."""
