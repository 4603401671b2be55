"""All families by name. Each module of this package lists its own; a new module is added here."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.families import (
    circulants,
    classic,
    cliques,
    d_cliques,
    geometric,
    random,
)
from topologies.family import ClosedForm, Family, GraphKind, GraphRequest
from topologies.schedules.catalog import FAMILIES as SCHEDULES

__all__ = ["FAMILIES", "ClosedForm", "Family", "GraphKind", "GraphRequest"]

FAMILIES: Mapping[str, Family] = {
    **classic.FAMILIES,
    **circulants.FAMILIES,
    **cliques.FAMILIES,
    **d_cliques.FAMILIES,
    **random.FAMILIES,
    **geometric.FAMILIES,
    **SCHEDULES,
}
