"""What counts as one address where each has a share or so many tries."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

_SITE_BITS = 64  # of an IPv6 address: whoever has one address has all that begin alike


def site(address: str) -> str:
    """What counts as one address: an IPv4 address, the first 64 bits of an IPv6 one; whatever is no address, as it is."""
    if ":" not in address:
        return address
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ip_network((found, _SITE_BITS), strict=False))
