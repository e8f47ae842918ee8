"""Novita's dialect."""
