"""The model: the cost of connections and messages, the needs of a deployment, and autoscaling under a load."""
