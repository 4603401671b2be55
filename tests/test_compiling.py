"""The compiled unit is used only where it fits; where it does not, one sentence says why, and plain Python runs."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from p2pfl import compiling
from p2pfl.compiling import FOLDER, MANIFEST, SUFFIX, UNIT, CompiledFinder, fingerprint

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("compile_unit", ROOT / "tools" / "compile.py")
compile_unit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compile_unit)

FACTS = "p2pfl.core.facts"
FITS = {
    "python": sys.version.split()[0],
    "suffix": SUFFIX,
    "modules": {FACTS: fingerprint(ROOT / "p2pfl" / "core" / "facts.py")},
}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.delenv("P2PFL_COMPILED_SAID", raising=False)
    yield
    os.environ.pop("P2PFL_COMPILED_SAID", None)


@pytest.mark.parametrize(
    ("manifest", "library", "reason"),
    [
        (FITS | {"python": "3.2.1"}, b"", "it was built for Python 3.2.1"),
        (FITS | {"suffix": ".other.so"}, b"", r"it was built for Python .*\.other\.so"),
        (FITS | {"modules": {FACTS: "0" * 32}}, b"", "p2pfl.core.facts has changed since it was built"),
        (FITS, b"no library at all", "it cannot be loaded"),
        (FITS, None, "it cannot be loaded"),
        ({"python": 3}, b"", "it cannot be loaded"),
        (None, b"", "it cannot be loaded"),
    ],
)
def test_a_unit_that_does_not_fit_is_left_aside_and_that_is_said_once(tmp_path, manifest, library, reason):
    (tmp_path / MANIFEST).write_text("{" if manifest is None else json.dumps(manifest))
    if library is not None:
        (tmp_path / f"{UNIT}__mypyc{SUFFIX}").write_bytes(library)
    with pytest.warns(RuntimeWarning, match=f"is not used: {reason}.*Plain Python does the same") as said:
        assert CompiledFinder(tmp_path).find_spec(FACTS) is None
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CompiledFinder(tmp_path).find_spec(FACTS) is None, "another process of the same run says nothing more"


def test_only_modules_of_the_unit_make_it_look(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CompiledFinder(tmp_path).find_spec("p2pfl.errors") is None
        assert CompiledFinder(tmp_path).find_spec("json") is None


@pytest.mark.parametrize(("built", "wish", "used"), [(False, None, False), (True, "0", False), (True, None, True)])
def test_a_unit_is_used_where_there_is_one_and_nobody_says_no(tmp_path, monkeypatch, built, wish, used):
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setattr(compiling, "FOLDER", tmp_path)
    monkeypatch.delenv("P2PFL_COMPILED", raising=False)
    if wish:
        monkeypatch.setenv("P2PFL_COMPILED", wish)
    if built:
        (tmp_path / MANIFEST).touch()
    compiling.use_compiled()
    assert [type(finder) for finder in sys.meta_path] == [CompiledFinder] * used


@pytest.mark.parametrize("file", compile_unit.module_files(), ids=str)
def test_a_source_of_the_unit_is_still_python_and_has_nothing_that_mypyc_refuses(file):
    adapted = compile_unit.adapted((ROOT / file).read_text(encoding="utf-8"))
    names = {node.arg for node in ast.walk(ast.parse(adapted)) if isinstance(node, ast.keyword)}
    assert "slots" not in names
    # A dataclass leaves these to its class, which has none of them once it is compiled.
    fields = [
        call for call in ast.walk(ast.parse(adapted)) if getattr(getattr(call, "func", None), "id", "") == "field"
    ]
    assert not [call for call in fields if {"default", "init"} <= {given.arg for given in call.keywords}]


@pytest.mark.skipif(not FOLDER.exists(), reason="python tools/compile.py has built no unit here")
def test_a_simulation_has_the_same_digest_compiled_and_in_plain_python():
    program = f"{compile_unit.PROBE}\nimport sim.kernel\nprint(sim.kernel.__file__.endswith('.py'))"
    outcomes = []
    for wish in ("0", "1"):
        surroundings = os.environ | {"P2PFL_COMPILED": wish, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=surroundings, capture_output=True, text=True, check=True
        )
        outcomes.append(done.stdout.split())
    assert outcomes[0][0] == outcomes[1][0]
    assert [is_plain for _, is_plain in outcomes] == ["True", "False"]
