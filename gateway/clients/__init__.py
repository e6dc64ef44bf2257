"""Clients that come in, take over, are judged, and leave; and the rules of each packet."""
