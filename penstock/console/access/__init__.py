"""Who may ask the console: logins, sessions, the names of hosts and origins, and limits."""
