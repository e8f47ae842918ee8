"""Sockets, TLS, connections and their limits, and the hand-over of all of it to a new process; what HTTP says is for ``server``."""
