"""What clients may do, and how much."""
