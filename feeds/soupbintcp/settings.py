"""Times and limits of a SoupBinTCP connection, checked together."""

from __future__ import annotations

from dataclasses import dataclass

from feeds.errors import ConfigError
from feeds.soupbintcp.protocol import EXACT_LENGTH, LENGTH_BYTES, PACKET_LENGTH_MAX, PacketType

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Times and limits of one connection. The first two are the protocol's own."""

    heartbeat_ns: int = SECOND_NS
    peer_silence_ns: int = 15 * SECOND_NS
    login_ns: int = 5 * SECOND_NS  # from the connection to the answer to the login
    rejection_delay_ns: int = SECOND_NS  # a server's, before it says no: guessing passwords takes its time
    unknown_per_address_max: int = 8  # a server's: connections of one address that have not logged in
    stall_ns: int = 10 * SECOND_NS  # output waits this long for a peer that takes nothing
    linger_ns: int = 2 * SECOND_NS  # from our end of a connection to the peer's
    courtesy_ns: int = SECOND_NS  # within that, a peer that knows that it is over may close first
    drain_ns: int = 60 * SECOND_NS  # the same where the peer may still be reading the end of its session
    packet_length_max: int = PACKET_LENGTH_MAX  # of what is received
    login_phase_bytes_max: int = 4_096  # received before anyone is known
    output_bytes_max: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("heartbeat_ns", "login_ns", "stall_ns", "linger_ns", "courtesy_ns", "drain_ns"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be more than 0, was {getattr(self, name)}")
        if self.rejection_delay_ns < 0:
            raise ConfigError(f"rejection_delay_ns must be 0 or more, was {self.rejection_delay_ns}")
        if self.unknown_per_address_max < 1:
            raise ConfigError(
                f"unknown_per_address_max must be 1 or more, was {self.unknown_per_address_max}"
            )
        if self.peer_silence_ns < 3 * self.heartbeat_ns:
            raise ConfigError(
                f"peer_silence_ns must cover three heartbeats ({3 * self.heartbeat_ns}), or one late packet "
                f"ends a connection; was {self.peer_silence_ns}"
            )
        if not self.courtesy_ns < self.linger_ns <= self.drain_ns:
            raise ConfigError(
                "courtesy_ns must be less than linger_ns, and linger_ns no more than drain_ns; "
                f"were {self.courtesy_ns}, {self.linger_ns} and {self.drain_ns}"
            )
        login_length = EXACT_LENGTH[PacketType.LOGIN_REQUEST]
        if not login_length <= self.packet_length_max <= PACKET_LENGTH_MAX:
            raise ConfigError(
                f"packet_length_max must be {login_length} (a login request) to {PACKET_LENGTH_MAX}, "
                f"was {self.packet_length_max}"
            )
        if self.login_phase_bytes_max < LENGTH_BYTES + login_length:
            raise ConfigError(
                f"login_phase_bytes_max must hold a login request ({LENGTH_BYTES + login_length}), "
                f"was {self.login_phase_bytes_max}"
            )
        if self.output_bytes_max < 2 * (LENGTH_BYTES + PACKET_LENGTH_MAX):
            raise ConfigError(
                f"output_bytes_max must hold two packets ({2 * (LENGTH_BYTES + PACKET_LENGTH_MAX)}), "
                f"was {self.output_bytes_max}"
            )
