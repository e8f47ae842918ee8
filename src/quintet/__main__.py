"""``python -m quintet`` is the ``quintet`` command."""

from quintet.cli import main

main()
