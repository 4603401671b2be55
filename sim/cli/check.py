"""The line of `p2pfl check FEDERATION --all` on arrays: what a simulation would take, or why there can be none."""

from __future__ import annotations

from typing import Any

from p2pfl.config.model import FederationConfig
from p2pfl.console.output import write_facts
from p2pfl.errors import P2PFLError
from p2pfl.node.feature import Check, Inspected


class ArraysCheck(Check):
    part = "arrays"

    def __init__(self) -> None:
        self._federation: FederationConfig | None = None

    def of_files(self, inspected: Inspected) -> None:
        self._federation = inspected.federation

    def told(self) -> Any:
        if self._federation is None:
            return None
        from sim.arrays.run import foresee  # noqa: PLC0415 - torch
        from sim.federations import own_tables  # noqa: PLC0415 - as above

        try:
            return {"takes": foresee(self._federation, own_tables(self._federation)), "refused": None}
        except P2PFLError as error:
            return {"takes": None, "refused": str(error)}

    def show(self, facts: Any) -> None:
        write_facts({"sim run --arrays": facts["takes"] or facts["refused"]})
