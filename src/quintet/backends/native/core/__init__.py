"""The compiled core as Python sees it, and the values and protocols (``types``) that need none; the only importer of ``quintet._core``."""
