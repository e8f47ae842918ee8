"""The native engine's own loop: load, then step while there is work."""
