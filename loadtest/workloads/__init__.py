"""Workloads: what devices publish, to which topics and how fast; and the workloads in the package."""
