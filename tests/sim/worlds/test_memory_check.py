"""The estimate of memory, and how a run that does not fit is refused."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from sim import available_bytes, check_memory, needed_bytes

SMALL = {"nodes": 1000, "edges": 2000, "size": 2410, "payload_bytes": 2000 * 1300}


@pytest.fixture
def machine(tmp_path):
    def machine(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return machine


def test_the_need_grows_with_each_of_its_causes():
    base = needed_bytes(**SMALL)
    changes = {"nodes": 2000, "edges": 4000, "size": 4820, "payload_bytes": 2000 * 9640, "personal": 100_000}
    for change in changes.items():
        assert needed_bytes(**(SMALL | dict([change]))) > base


def test_a_run_that_does_not_fit_is_refused_with_need_and_remedy(machine):
    root = machine(proc__meminfo="MemTotal: 9000000 kB\nMemAvailable:     500000 kB\n")
    check_memory(**(SMALL | {"nodes": 10, "edges": 20}), root=root)
    with pytest.raises(UserError, match=r"4\.\d GB; 0\.5 GB of memory are available.*fewer nodes"):
        check_memory(**(SMALL | {"nodes": 10_000, "edges": 20_000}), root=root)


def test_the_least_of_machine_and_groups_is_available(machine):
    root = machine(
        proc__meminfo="MemAvailable: 8000000 kB\n",
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__b__memory_dot_max="max\n",
        sys__fs__cgroup__a__memory_dot_max="3000000000\n",
        sys__fs__cgroup__a__memory_dot_current="2500000000\n",
        sys__fs__cgroup__a__memory_dot_stat="anon 1\ninactive_file 1000000000\n",
    )
    assert available_bytes(root) == 1_500_000_000


def test_where_nothing_is_known_nothing_is_refused(tmp_path, machine):
    assert available_bytes(tmp_path) is None
    check_memory(**(SMALL | {"nodes": 10**9, "edges": 10**10}), root=tmp_path)
    assert available_bytes(machine(proc__meminfo="nonsense\nMemAvailable: much\n")) is None
