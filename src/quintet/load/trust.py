"""Certificates of servers that nobody here vouches for."""

from __future__ import annotations

import ssl

_UNKNOWN = frozenset({18, 19, 20, 21})
"""OpenSSL's numbers for a certificate, or an issuer of it, that is not among those that are trusted."""


def untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Why a server's certificate is refused; what to do where that helps."""
    cure = "; SSL_CERT_FILE=cert.pem names what to trust, that certificate or its issuer's" if error.verify_code in _UNKNOWN else ""
    return f"the server's certificate is not trusted: {error.verify_message.rstrip('.')}{cure}"
