"""API keys: where they are kept, which of them count now, and what each may use. Nothing of HTTP."""
