"""Fireworks's dialect."""
