"""The durable log: CommitLog, flush policies, and the state that is rebuilt from it."""
