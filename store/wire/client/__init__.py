"""The one client of the wire: its rules without I/O, a link for asyncio, and a link that blocks."""
