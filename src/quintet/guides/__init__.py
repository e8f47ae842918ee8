"""Guides (JSON schema, grammar, regular expression, choice): translated, tried in a disposable process, followed as masks."""
