"""What a played capture remembers of itself: each exchange's folder has a history in its own protocol."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from feeds import formats
from feeds.exchange.config import ExchangeConfig


class CaptureHistory(Protocol):
    """Packets that went out, and answers about them."""

    def keep(self, packet: bytes) -> None: ...

    def answer(self, request: bytes, client: object, now_ns: int) -> list[bytes]: ...

    def report(self) -> dict[str, Any]: ...

    def warnings(self) -> list[str]: ...


def history_of(format_name: str, config: ExchangeConfig, now_ns: int) -> CaptureHistory:
    """Return the history in the protocol of a format."""
    module = importlib.import_module(f"feeds.{formats.load(format_name).name}.history")
    history: CaptureHistory = module.new_history(config.rerequest_limits, config.store_bytes, now_ns)
    return history
