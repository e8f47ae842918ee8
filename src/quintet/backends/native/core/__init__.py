"""The compiled core as Python sees it; the only importer of ``quintet._core``."""
