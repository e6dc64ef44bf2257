"""The console's connections to the store: one for each user. Nothing here knows HTTP."""
