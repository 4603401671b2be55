"""The nodes of tests/net."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

SPEC = spec_from_file_location("nodes_of_tests_net", Path(__file__).parents[1] / "net/conftest.py")
nodes = module_from_spec(SPEC)
sys.modules[SPEC.name] = nodes
SPEC.loader.exec_module(nodes)


@pytest.fixture
def federation() -> nodes.Federation:
    return nodes.Federation()


@pytest.fixture
def binding_of_tests():
    return nodes.binding()
