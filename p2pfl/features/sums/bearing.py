"""How many active colluders a federation bears in its sums, and why not more: for `p2pfl check`."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.features.sums.sum_certificate import quorum


@dataclass(frozen=True, slots=True, kw_only=True)
class SumBearing:
    """`colluders`: they learn no more than the sum of the others. `silent`: they cannot keep a sum from ending either.

    `deaths`: others that may be missing while no colluder refuses to sign. Each with a sentence that says why not more.
    """

    colluders: int
    why: str
    silent: int
    why_silent: str
    deaths: int


def bearing(members: int, connectivity: int, least: int = 3) -> SumBearing:
    """`connectivity`: of how many members' loss the graph of sessions first falls apart."""
    by_least, by_members = least - 2, members - 2
    colluders = max(0, min(by_least, by_members))
    if members < 3:
        why = f"{members} members have no secure sum: each would learn the other's summand"
    elif by_least <= by_members:
        why = f"a sum may have as few as least = {least} members, and two of them must be honest: raise least for more"
    else:
        why = f"of {members} members two must be honest"
    by_quorum, by_graph = (members - 1) // 3, connectivity - 1
    silent = max(0, min(colluders, by_quorum, by_graph))
    if silent == colluders:
        why_silent = "they can refuse to sign and to forward, and sums still end"
    elif by_graph < by_quorum:
        why_silent = f"{connectivity} members can cut the graph in two; the part without a quorum gets no sum"
    else:
        needed = quorum(members, silent + 1)
        why_silent = f"{needed} of {members} must sign against {silent + 1} colluders: more than would be left"
    deaths = max(0, members - quorum(members, colluders)) if colluders else 0
    return SumBearing(colluders=colluders, why=why, silent=silent, why_silent=why_silent, deaths=deaths)
