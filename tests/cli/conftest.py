"""The command line as a user has it: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from p2pfl.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def p2pfl(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def p2pfl(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(caught.value.code, captured.out, captured.err)

    return p2pfl
