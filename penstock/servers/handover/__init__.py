"""Replacing a running gateway by a process of another release: its sockets and their state go over a socket pair."""
