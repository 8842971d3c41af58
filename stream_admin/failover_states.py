"""The two tables behind failover: what an adapter may become, and what the decision about a group may become.

Everything that is legal is on this page. An unlisted pair raises IllegalTransition and changes nothing; the
pictures in the documentation are drawn from the tables by `as_mermaid`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from feeds.errors import IllegalTransition


class AdapterState(Enum):
    DEAD = "dead"  # not heard: never, no longer, or it said good-bye
    JOINING = "joining"  # heard, aligning itself with the group
    ALIGNED = "aligned"  # a synchronised backup: may be promoted
    UNSYNCHRONISED = "unsynchronised"  # its positions mean nothing: not promoted silently
    PROMOTED = "promoted"  # granted the active role, has not confirmed it yet
    ACTIVE = "active"
    FENCED = "fenced"  # told that a newer epoch owns the stream, has not stood down yet


class AdapterMove(Enum):
    JOIN = "join"
    SYNCHRONISE = "synchronise"
    LOSE_STEP = "lose step"
    REALIGN = "realign"
    PROMOTE = "promote"
    CONFIRM = "confirm"
    ADOPT = "adopt"  # it holds the durable epoch already: the server, or the line to it, was away
    FENCE = "fence"
    STAND_DOWN = "stand down"
    VANISH = "vanish"


_S, _M = AdapterState, AdapterMove
ADAPTER_TRANSITIONS: Mapping[AdapterState, Mapping[AdapterMove, AdapterState]] = {
    _S.DEAD: {_M.JOIN: _S.JOINING},
    _S.JOINING: {
        _M.SYNCHRONISE: _S.ALIGNED,
        _M.LOSE_STEP: _S.UNSYNCHRONISED,
        _M.PROMOTE: _S.PROMOTED,  # the founder of a stream, or by force
        _M.ADOPT: _S.ACTIVE,
        _M.FENCE: _S.FENCED,
        _M.VANISH: _S.DEAD,
    },
    _S.ALIGNED: {
        _M.LOSE_STEP: _S.UNSYNCHRONISED,
        _M.REALIGN: _S.JOINING,
        _M.PROMOTE: _S.PROMOTED,
        _M.FENCE: _S.FENCED,
        _M.VANISH: _S.DEAD,
    },
    _S.UNSYNCHRONISED: {
        _M.SYNCHRONISE: _S.ALIGNED,
        _M.REALIGN: _S.JOINING,
        _M.PROMOTE: _S.PROMOTED,  # by force, or as the least bad after a bound
        _M.FENCE: _S.FENCED,
        _M.VANISH: _S.DEAD,
    },
    _S.PROMOTED: {
        _M.CONFIRM: _S.ACTIVE,
        _M.PROMOTE: _S.PROMOTED,  # with a newer epoch: nobody else could take it
        _M.FENCE: _S.FENCED,
        _M.VANISH: _S.DEAD,
    },
    _S.ACTIVE: {_M.PROMOTE: _S.PROMOTED, _M.FENCE: _S.FENCED, _M.VANISH: _S.DEAD},
    _S.FENCED: {_M.STAND_DOWN: _S.JOINING, _M.PROMOTE: _S.PROMOTED, _M.VANISH: _S.DEAD},
}


class GroupPhase(Enum):
    RECOVERING = "recovering"  # the server started: adapters get a grace time to be heard
    VACANT = "vacant"  # nobody is active, and nobody may be
    PERSISTING = "persisting"  # an epoch is on its way to the store: nothing is granted before it is durable
    GRANTING = "granting"  # granted, not confirmed
    STEADY = "steady"
    OFFERED = "offered"  # hand-over: the next active was told, the present one was not
    ARMED = "armed"  # hand-over: both know the position, the stream is on its way to it


class GroupMove(Enum):
    ADOPT = "adopt"
    RESUME = "resume"
    PERSIST = "persist"
    GRANT = "grant"
    OFFER = "offer"
    ARM = "arm"
    CONFIRM = "confirm"
    LOSE = "lose"


_P, _G = GroupPhase, GroupMove
GROUP_TRANSITIONS: Mapping[GroupPhase, Mapping[GroupMove, GroupPhase]] = {
    _P.RECOVERING: {
        _G.ADOPT: _P.STEADY,
        _G.RESUME: _P.GRANTING,
        _G.OFFER: _P.OFFERED,
        _G.PERSIST: _P.PERSISTING,
        _G.LOSE: _P.VACANT,
    },
    _P.VACANT: {_G.PERSIST: _P.PERSISTING, _G.ADOPT: _P.STEADY},
    _P.PERSISTING: {
        _G.GRANT: _P.GRANTING,
        _G.OFFER: _P.OFFERED,
        _G.PERSIST: _P.PERSISTING,  # the chosen one is gone, or the store failed: another number
        _G.LOSE: _P.VACANT,
    },
    _P.GRANTING: {_G.CONFIRM: _P.STEADY, _G.PERSIST: _P.PERSISTING, _G.LOSE: _P.VACANT},
    _P.STEADY: {_G.PERSIST: _P.PERSISTING, _G.LOSE: _P.VACANT},
    _P.OFFERED: {_G.ARM: _P.ARMED, _G.PERSIST: _P.PERSISTING, _G.LOSE: _P.VACANT},
    _P.ARMED: {_G.CONFIRM: _P.STEADY, _G.PERSIST: _P.PERSISTING, _G.LOSE: _P.VACANT},
}

State = TypeVar("State", bound=Enum)
Move = TypeVar("Move", bound=Enum)


def moved(table: Mapping[State, Mapping[Move, State]], state: State, move: Move, who: str) -> State:
    """Return where `move` leads from `state`. Raises IllegalTransition for an unlisted pair."""
    try:
        return table[state][move]
    except KeyError:
        allowed = ", ".join(sorted(repr(listed.value) for listed in table[state])) or "nothing"
        raise IllegalTransition(
            f"{who}: {move.value!r} is not possible while {state.value!r}, only {allowed}"
        ) from None


def as_mermaid(table: Mapping[State, Mapping[Move, State]]) -> str:
    """Return the table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for state, moves in table.items():
        lines += [f"    {state.name} --> {target.name}: {move.value}" for move, target in moves.items()]
    return "\n".join(lines) + "\n"
