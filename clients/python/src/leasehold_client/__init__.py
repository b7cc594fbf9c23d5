"""Distributed locks with fencing tokens, through a leasehold server.

.. code-block:: python

    from leasehold_client import Client

    client = Client("http://127.0.0.1:7654")
    with client.hold("deploy", wait="1m") as lease:
        print("writing with token", lease.token)
"""

from ._shapes import Holder, LockInfo, Record, Taken, Waiter
from .aio import AsyncClient, AsyncLease, AsyncStore, AsyncTurn
from .client import Client, Store, Turn
from .errors import (
    AccessDenied,
    Changed,
    Held,
    InvalidRequest,
    LeaseholdError,
    LeaseLost,
    Stale,
    Unavailable,
    UnexpectedAnswer,
    Unsupported,
)
from .lease import Lease

__all__ = [
    "AccessDenied",
    "AsyncClient",
    "AsyncLease",
    "AsyncStore",
    "AsyncTurn",
    "Changed",
    "Client",
    "Held",
    "Holder",
    "InvalidRequest",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "LockInfo",
    "Record",
    "Stale",
    "Store",
    "Taken",
    "Turn",
    "Unavailable",
    "UnexpectedAnswer",
    "Unsupported",
    "Waiter",
]
