"""All families by name. Each module of this package lists its own; a new module is added here."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.families import (
    boxes,
    circulants,
    classic,
    cliques,
    d_cliques,
    expanders,
    geometric,
    keyed,
    layered,
    random,
)
from topologies.family import ClosedForm, Family, Kind, Request
from topologies.schedules.catalog import FAMILIES as SCHEDULES

__all__ = ["FAMILIES", "ClosedForm", "Family", "Kind", "Request"]

FAMILIES: Mapping[str, Family] = {
    **classic.FAMILIES,
    **boxes.FAMILIES,
    **circulants.FAMILIES,
    **expanders.FAMILIES,
    **layered.FAMILIES,
    **cliques.FAMILIES,
    **d_cliques.FAMILIES,
    **keyed.FAMILIES,
    **random.FAMILIES,
    **geometric.FAMILIES,
    **SCHEDULES,
}
