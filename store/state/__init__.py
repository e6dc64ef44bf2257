"""State that records change: sessions, groups, delayed and retained messages, peers, bans."""
