"""Looking after a data folder: check, repair, backup, restore. A server runs none of it but the scrubber."""
