"""Token bytes to text: detokenising, stop strings, offsets. Pure and incremental: ``feed()`` and ``flush()``."""
