"""A node as a Python object, for those who would rather call than type: `from p2pfl import Node`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.reporting.status import NodeLine, NodeResult
from p2pfl.runtime.app import Application
from p2pfl.runtime.parts import read_setup


class Node:
    """One node of a federation, as `p2pfl run` starts it.

    `federation` is the file or its folder, `on_progress` is called with its figures at most ten times a
    second. Signals stay the caller's business.

    Raises:
        UserError: something in the files is wrong.
    """

    def __init__(
        self, federation: Path | str, name: str, *, on_progress: Callable[[NodeLine], None] = lambda _: None
    ) -> None:
        described = load_config(federation)
        config = load_node(node_file(described, name), described, name)
        self._application = Application(read_setup(described, config), on_line=on_progress)

    async def run(self) -> NodeResult | None:
        """Run until the rounds are done or `stop` is called; the result also stands in `<state_dir>/result.json`.

        None where it was stopped before it could begin, because its disk was full.
        """
        return await self._application.run()

    def stop(self) -> None:
        """End cleanly, keeping a snapshot. From the event loop that runs the node."""
        self._application.stop()
