"""All families by name. Each module of this package lists its own; add a new one here."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.families.circulants import CIRCULANTS
from topologies.families.classic import CLASSIC
from topologies.families.cliques import CLIQUES
from topologies.families.d_cliques import D_CLIQUES
from topologies.families.random import RANDOM
from topologies.family import ClosedForm, Family, GraphKind, GraphRequest
from topologies.schedules.drawn import DRAWN
from topologies.schedules.powers import POWERS

FAMILIES: Mapping[str, Family] = {
    **CLASSIC,
    **CIRCULANTS,
    **CLIQUES,
    **D_CLIQUES,
    **RANDOM,
    **POWERS,
    **DRAWN,
}
