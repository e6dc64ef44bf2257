"""Maintenance of a data folder while no server runs on it: check, repair, restore; and backup, also of one in use."""
