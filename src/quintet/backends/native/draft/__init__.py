"""Tokens drafted ahead of the model: what a sequence may go on with, and how far that is worth computing. Pure."""
