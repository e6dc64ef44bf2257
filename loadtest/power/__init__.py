"""Power cuts: what they may leave of a server's files; and injuries to the files while it runs."""
