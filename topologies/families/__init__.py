"""All families by name. Each module of this package, and of `schedules`, lists its own; add a new module here."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.families import circulants, classic, cliques, d_cliques, random
from topologies.family import ClosedForm, Family, GraphKind, GraphRequest
from topologies.schedules import drawn, powers

__all__ = ["FAMILIES", "ClosedForm", "Family", "GraphKind", "GraphRequest"]

FAMILIES: Mapping[str, Family] = {
    **classic.FAMILIES,
    **circulants.FAMILIES,
    **cliques.FAMILIES,
    **d_cliques.FAMILIES,
    **random.FAMILIES,
    **powers.FAMILIES,
    **drawn.FAMILIES,
}
