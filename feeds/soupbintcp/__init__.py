"""SoupBinTCP 3.00, both ends: machines without sockets, and thin asyncio shells around them.

A program that only speaks the protocol needs `SoupClient` or `SoupServer`; a simulation, or another event
loop, drives `ClientConnection` and `ServerConnection` itself.
"""

from __future__ import annotations

from feeds.soupbintcp.client import ClientConnection
from feeds.soupbintcp.client_shell import LoginRefused, SoupClient
from feeds.soupbintcp.connection import Move, State
from feeds.soupbintcp.events import (
    Closed,
    CloseReason,
    DebugText,
    Event,
    LoginAccepted,
    LoginRejected,
    SequencedData,
    UnsequencedData,
)
from feeds.soupbintcp.protocol import LoginRequest, PacketError, PacketType, RejectReason, SoupError
from feeds.soupbintcp.server import (
    Accounts,
    Authenticator,
    Opening,
    ServerConnection,
    SessionDirectory,
    StoredSessions,
)
from feeds.soupbintcp.server_shell import ServerPeer, SoupServer
from feeds.soupbintcp.settings import Settings

__all__ = [
    "Accounts",
    "Authenticator",
    "ClientConnection",
    "CloseReason",
    "Closed",
    "DebugText",
    "Event",
    "LoginAccepted",
    "LoginRefused",
    "LoginRejected",
    "LoginRequest",
    "Move",
    "Opening",
    "PacketError",
    "PacketType",
    "RejectReason",
    "SequencedData",
    "ServerConnection",
    "ServerPeer",
    "SessionDirectory",
    "Settings",
    "SoupClient",
    "SoupError",
    "SoupServer",
    "State",
    "StoredSessions",
    "UnsequencedData",
]
