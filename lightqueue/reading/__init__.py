"""Reading ranges, by position, time or filter."""
