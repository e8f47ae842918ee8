"""Five providers' dialects of ``POST /v1/completions``: bytes to a canonical request, canonical events to provider JSON. Pure."""
