"""Results as data, tables, pages and plots, and which of the goals they reach."""
