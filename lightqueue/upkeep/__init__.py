"""The store's periodic work: retention, trimming, delayed messages, absent sessions."""
