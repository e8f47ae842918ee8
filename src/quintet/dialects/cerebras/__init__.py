"""Cerebras's dialect."""
