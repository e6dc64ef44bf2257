"""What is wrong with an index, and making it anew."""
