"""A group with two adapters whose heartbeats a test sends by hand, and what came out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from stream_admin.failover import FailoverGroup
from stream_admin.failover_messages import (
    Action,
    EpochPersisted,
    Event,
    Grant,
    Heartbeat,
    PersistEpoch,
    StoredGroup,
    Sync,
    Tick,
)
from stream_admin.failover_settings import MILLISECOND_NS, FailoverSettings

SETTINGS = FailoverSettings(stream="XNAS.ITCH", adapters=("a", "b"), hand_over_lead_messages=10)
Kind = TypeVar("Kind")


@dataclass
class Scene:
    settings: FailoverSettings = SETTINGS
    stored: StoredGroup = field(default_factory=StoredGroup)
    now_ns: int = 0
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group = FailoverGroup(self.settings, self.stored, self.now_ns)
        self.adapters: dict[str, dict[str, Any]] = {
            name: {
                "incarnation": 1,
                "number": 0,
                "epoch": 0,
                "is_active": False,
                "position": 100,
                "sync": Sync.SYNCHRONISED,
                "lines_up": 2,
                "source_time_ns": 0,
            }
            for name in self.settings.adapters
        }

    def tell(self, event: Event) -> list[Action]:
        """Give the event; what came of it is returned, and kept."""
        done = self.group.on_event(event, self.now_ns)
        self.actions += done
        return done

    def beat(self, name: str, **changed: Any) -> list[Action]:
        state = self.adapters[name]
        state.update(changed)
        state["number"] += 1
        source_seq = state["position"]
        return self.tell(Heartbeat(adapter=name, session=1, source_seq=source_seq, **state))

    def persist(self) -> list[Action]:
        """The store confirms what it was asked for last."""
        return self.tell(EpochPersisted(self.all(PersistEpoch)[-1].record.epoch))

    def obey(self) -> None:
        """The adapter that was granted last shows it."""
        grant = self.all(Grant)[-1]
        for name, state in self.adapters.items():
            state["is_active"] = name == grant.adapter
            state["epoch"] = grant.epoch
        self.beat(grant.adapter)

    def found(self) -> None:
        """Make `a` active in epoch 1, `b` its synchronised backup, both long enough to be trusted."""
        self.beat("a")
        self.beat("b")
        self.persist()
        self.obey()
        self.run(6_000)

    def run(self, milliseconds: int, *, silent: tuple[str, ...] = (), **steps: int) -> None:
        """Let time pass in heartbeats; `steps` says by how much each adapter's position grows with each."""
        for _ in range(milliseconds // 10):
            self.now_ns += 10 * MILLISECOND_NS
            self.tell(Tick())
            for name, state in self.adapters.items():
                if name not in silent:
                    position = state["position"] + steps.get(name, 5)
                    self.beat(name, position=position, source_time_ns=position * 1_000)

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [action for action in self.actions if isinstance(action, kind)]

    def forget(self) -> None:
        self.actions.clear()
