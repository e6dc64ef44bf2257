"""The console's connections to a store. No HTTP here."""
