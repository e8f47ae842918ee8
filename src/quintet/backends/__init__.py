"""Engines behind one boundary (``base.Backend``): the embedded native engine, and a toy model that needs no weights."""
