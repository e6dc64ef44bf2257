"""What a start makes of a log that was not closed, or that is damaged."""
