"""The event loop's side of the native engine: its verbs, the requests in flight, the worker's supervision."""
