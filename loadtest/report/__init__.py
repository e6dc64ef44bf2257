"""Results as data, tables, pages and plots, and the goals that they reach."""
