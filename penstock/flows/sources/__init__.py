"""Where flows come from besides topic filters, one module for each kind."""
