"""Recovery: what a start does with a log that was not closed, or that is damaged."""
