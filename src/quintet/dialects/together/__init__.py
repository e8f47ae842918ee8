"""Together's dialect."""
