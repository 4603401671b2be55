"""What a node leaves in its state folder is for its owner alone, and never written through a planted link."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.usefixtures("lone")


async def test_all_files_of_a_node_are_for_its_owner_alone_and_no_link_is_followed(ward, start):
    field = ward(2, training={"rounds": 3, "closing_rounds": 1}, gossip={"start_wait_s": 0.1, "linger_s": 0.1})
    (field.folder / "node1" / "state").mkdir(0o700)
    planted = {name: field.folder / f"elsewhere-{name}" for name in ("result.json", "result.tmp", "result.json.tmp")}
    for name, target in planted.items():
        (field.folder / "node1" / "state" / name).symlink_to(target)
    before = os.umask(0)
    try:
        (node,) = start(field, 1)
        assert (await node.result()).finished
    finally:
        os.umask(before)
    assert not [target for target in planted.values() if target.exists()]
    state = node.setup.node.state_dir
    made = [path for path in state.iterdir() if not path.is_symlink()]
    assert {"result.json", "lock"} < {path.name for path in made}
    assert {path.stat().st_mode & 0o777 for path in made} == {0o600}
