"""Quintet: a text-completions server on your own machine that speaks five providers' dialects."""

__version__ = "0.1.0"
