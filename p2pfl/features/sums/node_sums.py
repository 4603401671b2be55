"""The sums of a node that learns, over its own sessions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from p2pfl.config.federation_id import federation_id
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features.sums.kept import KeptSums, next_life
from p2pfl.features.sums.patience import FIRST_S
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.sum_settings import SumSettings
from p2pfl.features.sums.sum_talk import SumTalk

SHARE_S = 0.2
"""Nodes may share a machine: each waits this much longer for each member before anything was measured."""


class NodeSums:
    """`talk` is the handler of the channel `sums/1`. What is signed is kept in `folder`. A set-up serves `sums`.

    `was_signed` is set when a list of members with the vector of the present sum was certified here.
    """

    def __init__(
        self,
        federation: FederationConfig,
        index: int,
        identity: Identity,
        say: Callable[..., bool],
        alarm: Callable[[str, int | None, str], object],
        *,
        least: int,
        colluders: int,
        folder: Path,
        sums: int = 64,
    ) -> None:
        """Raises StorageError: what was kept there is damaged, or the disk refuses."""
        self.members = len(federation.members)
        self.was_signed = False
        keys = tuple(member.key for member in federation.members)
        self._kept, self.life = KeptSums(folder, keys), next_life(folder)
        settings = SumSettings(
            federation=federation_id(federation),
            members=keys,
            index=index,
            life=self.life,
            colluders=colluders,
            least=least,
            sums=sums,
        )
        wait_s = FIRST_S + SHARE_S * self.members
        self._sums = Sums(settings, identity, draw=os.urandom, past=self._kept.past, first_wait_s=wait_s)
        self.talk = SumTalk(self._sums, say, keep=self._keep, alarm=alarm)

    @property
    def is_member(self) -> bool:
        """True if this node takes part in sums; after its start it waits for the next set-up."""
        return self._sums.setup is not None

    @property
    def came(self) -> frozenset[int]:
        """The members whose keys are here, this one among them."""
        return frozenset(self._sums.records.latest)

    def _keep(self, data: bytes, members: frozenset[int]) -> None:
        self._kept.add(data, members)
        self.was_signed = True
