"""Certificates for tests, made by the ``openssl`` command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def certificate(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2", "-subj", f"/CN={name}"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    protect = more or ("-nodes",)
    command = ["openssl", "req", "-x509", *words, *names, *protect, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key
