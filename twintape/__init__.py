"""Twintape: a market-data feed that does not stop.

This package is the thin front of the project: the command and its version. The parts live beside it
(`feeds`, `middleware`, `adapters`, `stream_admin`, `replay`, `spark`, `perf`) and are imported only when
a verb or a program asks for them.
"""

__version__ = "0.1.0"
