"""What Windows promises, in this folder, where Windows is played; prints as JSON what it came to."""

import importlib
import json
import pkgutil
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from p2pfl import Federation, Node, UserError
from p2pfl.cli.main import main

WORKS = (
    "new ward --nodes 3",
    "new empty --nodes 3",
    "check ward",
    "sim run ward --quiet",
    "sim sweep sweep.toml --jobs 1 --quiet",
    "topology info ring --nodes 8",
    "key own.key",
    "list rules",
    "status ward",
)
REFUSED = ("demo", "doctor", "invite", "join", "launch", "member", "privacy", "relay", "run", "stats")


def import_all():
    for name in ("p2pfl", "topologies", "sim"):
        package = importlib.import_module(name)
        for each in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(each.name)


def call(command):
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(command.split())
        except SystemExit as end:
            return [end.code, out.getvalue(), err.getvalue()]


def short(file):
    file.write_text(re.sub(r"(?m)^rounds( *)= \d+", "rounds = 2", file.read_text(encoding="utf-8")), encoding="utf-8")


def run_federation():
    rows = Federation(task="quadratic", nodes=3, rounds=5).run(checkpoints="models", checkpoint_every=2).nodes
    try:
        Node("ward", "node0")
    except UserError as error:
        return [min(row.rounds for row in rows), sorted(path.name for path in Path("models").iterdir()), str(error)]


if __name__ == "__main__":
    import_all()
    Path("empty").mkdir()
    Path("sweep.toml").write_text('[sweep]\nbase = "ward"\nseeds = 1\n', encoding="utf-8")
    said = {}
    for command in (*WORKS, *(f"{name} ward" for name in REFUSED)):
        said[command] = call(command)
        if command.startswith("new"):
            short(Path(command.split()[1]) / "federation.toml")
    json.dump({"said": said, "run": run_federation()}, sys.stdout)
