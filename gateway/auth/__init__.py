"""Who may come in and what they may do there: rules without sockets, and the few parts that ask somebody else."""
