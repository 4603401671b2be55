"""Pages as a reader follows them: their blocks in order, their files written, their commands in a shell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click

from p2pfl.cli import cli

ROOT = Path(__file__).parents[2]


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text):
    """Each fenced block as (language, text)."""
    return re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)


def commands(text):
    """Each `p2pfl ...` of the blocks and of the inline code, as words."""
    shells = [block for language, block in blocks(text) if language != "python"]
    lines = [line for block in shells for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    found = (re.search(r"(?:^|\s|/)p2pfl (?=\w)([^|&;>]*)", line) for line in lines)
    return [shlex.split(match[1], comments=True) for match in found if match]


def command_mistake(words):
    """Why the command line has no such command or option; None if it has."""
    command, rest = cli, list(words)
    while rest and isinstance(command, click.Group):
        if (following := command.get_command(click.Context(command), rest[0])) is None:
            return f"p2pfl {shlex.join(words)}: no such command"
        command = following
        rest.pop(0)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
    wrong = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
    return f"p2pfl {shlex.join(words)}: no option {wrong[0]}" if wrong else None


def shell(folder, script, *, timeout_s=300.0):
    """Run the script by bash in this folder, with `p2pfl` and `python` of this environment; give its output."""
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    for name, command in (("python", ""), ("p2pfl", "-m p2pfl ")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command}"$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def follow(page, folder, change=lambda script: script):
    """Do what the page says from top to bottom; give what each `sh` block printed.

    A Python block whose first line names a file becomes that file.
    """
    said = []
    for language, block in blocks(read(page)):
        if language == "sh":
            said.append(shell(folder, change(block)))
        elif language == "python":
            name = re.match(r"# (\S+\.py)\n", block)[1]
            (folder / name).write_text(block, encoding="utf-8")
            if not any(name in other for kind, other in blocks(read(page)) if kind == "sh") and "/" not in name:
                said.append(shell(folder, f"python {name}"))
    return said
