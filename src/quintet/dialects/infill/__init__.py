"""llama-server's ``POST /infill``, for editors."""
