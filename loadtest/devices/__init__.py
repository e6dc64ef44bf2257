"""Simulated devices: how they connect, what they publish, and the measurements of one run of a workload."""
