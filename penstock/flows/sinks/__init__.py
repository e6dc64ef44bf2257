"""Where flows lead to, one module for each kind."""
