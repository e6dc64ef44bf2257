"""Fuzzing: `python -m tests.fuzz` speaks to a server, `python -m tests.fuzz.codec` (atheris) to the codec alone."""
