"""`from p2pfl import Node`: a node run from Python."""

from __future__ import annotations

import asyncio

from p2pfl import Node
from p2pfl.storage import Store


async def test_nodes_run_from_python_and_return_their_results(ward):
    made = ward(3)
    lines = []
    nodes = [Node(made.folder, name, on_progress=lines.append) for name in made.names]
    results = await asyncio.wait_for(asyncio.gather(*(node.run() for node in nodes)), 60)
    assert [result.node for result in results] == made.names
    assert all(result.finished for result in results)
    assert lines
    assert all(line.sketch is None for line in lines), "they are for a launcher"
    for node in nodes:
        Store.open(node._application.setup.node.state_dir, durability="exchange").close()  # nobody holds it any more
