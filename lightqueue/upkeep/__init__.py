"""What is done now and then: retention, trimming, delayed messages, absent sessions."""
