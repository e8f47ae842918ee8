"""The ASGI edge: routes, keys, limits, streaming, and a client that goes away."""
