"""What the console sees of the server and keeps for a day: figures by process, samples, and what is wrong."""
