"""The simulated devices: how they connect, what they publish, and what one run of a workload measures."""
