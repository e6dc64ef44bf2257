"""Inspects and checks a data folder, and rebuilds its index."""
