"""What devices publish, to which topics and how fast; the workloads that come along."""
