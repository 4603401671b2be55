"""`p2pfl new --lan`: nodes on several machines of one LAN, which find each other without addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from p2pfl.console.founding import Founding, FoundingPlan


class LanFounding(Founding):
    parameters = (
        click.Option(
            ["--lan"],
            is_flag=True,
            help="For one LAN: nodes find each other on it.",
        ),
    )
    after = "topology"

    def plan(self, plan: FoundingPlan, said: Mapping[str, Any]) -> None:
        plan.discovery = said["lan"]
