"""Load on a server that speaks the completions API, and what is seen of it: for ``quintet bench`` and for ``bench/``."""
