"""Records byte by byte, and the compiled part."""
