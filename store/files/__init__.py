"""Segment files, and the small files beside them."""
