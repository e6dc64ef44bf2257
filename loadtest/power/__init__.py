"""What a power cut may leave of a server's files, and injuries to them while it runs."""
