"""What connections and messages cost, what a deployment needs, and how an autoscaler follows a load."""
