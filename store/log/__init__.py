"""The CommitLog: append, flush, scrub; and the index beside it."""
