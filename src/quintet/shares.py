"""A tenant's share of what all hold: whoever leaves as much as it takes cannot shut the others out. Plain code over values."""

from __future__ import annotations


def exceeds_share(tenant: str, own: int, more: int, left: int) -> bool:
    """A tenant would hold more than it leaves. What it holds of nothing yet it may always take, if there is room.

    Args:
        tenant: empty where there are no keys: everybody is one, and has no share.
        own: that it holds already.
        more: that it asks for.
        left: of the room for all, once it has it; below 0 = there is too little.
    """
    return bool(tenant) and own > 0 and own + more > left
