"""An internet in a box, for whoever may make one."""

from __future__ import annotations

import pytest
from internet_in_a_box import Internet, why_not


@pytest.fixture
def net(tmp_path, request):
    """An empty internet. The mark `needs` names programs without which the test is skipped."""
    programs = [name for mark in request.node.iter_markers("needs") for name in mark.args]
    if reason := why_not(*programs):
        pytest.skip(reason)
    folder = tmp_path / "box"
    folder.mkdir()
    with Internet(folder) as box:
        yield box
