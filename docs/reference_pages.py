"""Write the reference pages into a folder: `python docs/reference_pages.py OUT`.

What a page says is read from the program: commands from click, keys from the tables of `p2pfl.config`, specs from
their catalogs, metrics and alarms from their texts, the Python API from the source. Torch is never imported.
"""

# ruff: noqa: INP001, PLC0415 - a script, of which each page imports what it reads

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from p2pfl.config.writing import toml_value

WIDTH = 100
HOME = "This page is generated from the program."
CODE = re.compile(r"(`[^`]*`)")
PLAIN_WORD = re.compile(r"(?:[a-z]{2,}|a)[ ,.]")
ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", "*": r"\*"})


def main(arguments: Sequence[str]) -> int:
    """Write all pages. Exit code 2: no folder was named, or it cannot be written."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python docs/reference_pages.py OUT\n")
        return 2
    folder = Path(arguments[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages().items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"error: {folder}: cannot be written: {error.strerror}\n")
        return 2
    return 0


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    made = {
        "commands.md": commands(),
        "settings.md": settings(),
        "specs.md": specs(),
        "python-api.md": python_api(),
        "prometheus.md": prometheus(),
        "alarms.md": alarms(),
        "limits.md": limits(),
    }
    return {name: re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n" for name, lines in made.items()}


# -- Markdown ----------------------------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """Plain text whose signs Markdown and HTML leave alone; what stands between backticks stays code."""
    parts = CODE.split(" ".join(text.split()))
    return "".join(part if part.startswith("`") else part.translate(ESCAPES) for part in parts)


def sentence(text: str) -> str:
    """A line of meaning as a sentence: a word of a file, such as `true`, keeps its small letter."""
    line = " ".join(text.split())
    first = line[0].upper() + line[1:] if PLAIN_WORD.match(line) else line
    return prose(first if first.endswith((".", "?", "!")) else f"{first}.")


def code(text: str) -> str:
    return f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table; an empty cell gets a dash."""
    yield ""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        # in code a bar needs no escape, and the site would show one
        bars = (re.sub(r"(`[^`]*`)|\|", lambda bar: bar[1] or r"\|", " ".join(cell.split())) for cell in row)
        cells = (cell or "-" for cell in bars)
        yield f"| {' | '.join(cells)} |"
    yield ""


def fenced(text: str, language: str = "") -> list[str]:
    return [f"```{language}", *text.strip("\n").split("\n"), "```", ""]


def paragraphs(text: str) -> Iterator[str]:
    """A docstring or a help text: indented paragraphs are code, lists stay lists."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if part.startswith("    "):
            yield from fenced(inspect.cleandoc(part), "python")
        elif part.lstrip("\b\n").startswith("- "):
            yield from (f"- {prose(item)}" for item in re.split(r"(?:^|\n)- ", part)[1:])
            yield ""
        else:
            yield from (prose(part.replace("\b", "")), "")


# -- commands ----------------------------------------------------------------------------------------------------------


def walk(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """The context of a command and of all below it that are not hidden, in the order of the listing."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **command.context_settings,
    )
    yield context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            below = command.get_command(context, child)
            if below is not None and not below.hidden:
                yield from walk(below, child, context)


def commands() -> Iterator[str]:
    from p2pfl.cli.main import cli

    yield from ("# Commands", "", f"{HOME} Every command also has `-h` and `--help`.", "")
    for context in walk(cli, "p2pfl"):
        command = context.command
        yield from (f"{'##' if context.command_path.count(' ') < 2 else '###'} {context.command_path}", "")
        yield from paragraphs(command.help or command.short_help or "")
        yield from fenced(" ".join(command.get_usage(context).removeprefix("Usage: ").split()))
        records = [option.get_help_record(context) for option in command.params if isinstance(option, click.Option)]
        if options := [record for record in records if record]:
            yield from table(("option", "meaning"), ((code(name), prose(text)) for name, text in options))
        yield from epilog(command.epilog or "")


def epilog(text: str) -> Iterator[str]:
    """Examples as code, anything else as text."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        title, _, lines = part.lstrip("\b\n").partition("\n")
        if title.startswith("Example") and lines:
            yield from (title, "", *fenced(inspect.cleandoc("\n" + lines)))
        elif part.strip():
            yield from (prose(part.replace("\b", "")), "")


# -- keys of the files -------------------------------------------------------------------------------------------------

TYPES = {"boolean": "true or false", "integer": "whole number", "number": "number", "array": "list of texts"}


def type_of(schema: Mapping[str, Any]) -> str:
    """The type of a key in words; that of a list, where it may be one."""
    kinds = [each["type"] for each in schema.get("anyOf", (schema,))]
    return TYPES.get("array" if "array" in kinds else kinds[0], "text")


def keys(
    shown: Any, *, defaults: Mapping[str, str] | None = None, only: Iterable[str] = (), typed: bool = True
) -> list[str]:
    """The keys of a `Table`, all or `only` some; `defaults` are in words."""
    rows = []
    for key, kind in shown.kinds.items():
        if not only or key in only:
            known = code(toml_value(shown.defaults[key])) if key in shown.defaults else "not set"
            default = "must be given" if key in shown.needed else (defaults or {}).get(key, known)
            allowed = with_type(type_of(kind.schema), kind.allowed) if typed else kind.allowed
            rows.append((code(key), sentence(kind.means), default, prose(allowed)))
    return list(table(("key", "meaning", "default", "allowed"), rows))


def with_type(kind: str, allowed: str) -> str:
    """The allowed values, behind their type where the words do not begin with that."""
    named = allowed.removeprefix("a ").startswith((kind, "list of", "text, or a list"))
    return allowed if named else f"{kind}: {allowed}"


def settings() -> Iterator[str]:
    from p2pfl.config import model
    from p2pfl.config.schemas import federation_tables, node_tables
    from p2pfl.config.sections import HideConfig, PrivacyConfig
    from p2pfl.config.tables import kinds_of

    method = f'`{json.dumps(model.USUAL_METHOD)}` with `rule = "mean"`, else `{json.dumps(model.USUAL_ROBUST_METHOD)}`'
    shown = {each.name: each for each in federation_tables()}
    yield from ("# Settings", "", f"{HOME} `p2pfl new` writes federation.toml and node.toml with all keys.", "")
    yield from ("## federation.toml", "", "Every node has the same file.", "")
    yield from ("### [federation]", *keys(shown["federation"]))
    yield from ("### [task]", *keys(shown["task"]))
    yield from ("All other keys are the task's own. Those of the built-in tasks:", "", *built_in_tasks())
    yield from ("### [training]", "", "One of `rounds` and `time_s`, and one of `local_steps` and `local_epochs`.")
    yield from keys(shown["training"], defaults={"method": method})
    yield from ("### [gossip]", *keys(shown["gossip"]))
    yield from (
        "### [privacy]",
        "",
        "Without this table nothing is promised. A budget has one of `epsilon` and `noise`:",
    )
    budget = kinds_of(PrivacyConfig)
    yield from keys(shown["privacy"], defaults={"delta": "must be given"}, only=budget)
    yield "Without a budget, these keys and `colluders` hide models in sums:"
    hidden = kinds_of(HideConfig).keys() - budget
    yield from keys(shown["privacy"], defaults={"hide": "must be given"}, only=hidden)
    yield from ("### [network]", *keys(shown["network"]))
    yield from ("### [[edge]]", "", "Once for each edge that has its own compressor.")
    yield from keys(shown["edge"])
    yield from ("### [[node]]", "", "Once for each member.")
    yield from keys(shown["node"])
    yield from ("## node.toml", "", "Each node has its own file. Paths are relative to it.", "")
    shown = {each.name: each for each in node_tables()}
    listen = "`0.0.0.0`, with the port of the node's address"
    yield from ("### [node]", *keys(shown["node"], defaults={"listen": listen}))
    yield from ("### [network]", *keys(shown["network"], defaults={"discovery": "that of federation.toml"}))
    yield from ("### [data]", "", "All keys are for the task, which finds them in `node.local`.")
    yield from ("", "### [stats]", "", "For the task `csv`: what [`p2pfl stats`](../how-to/statistics.md) may ask.")
    yield from keys(shown["stats"])
    yield from ("", "## Keys of csv", "", "The task `csv` has these keys in `[task]`:")
    from p2pfl.learn.table.task import MEANS

    yield from table(("key", "meaning"), ((code(key), sentence(text)) for key, text in MEANS.items()))
    yield "The schema, in `[task]` or in the file that `schema` names:"
    yield from fields_of("p2pfl.learn.table.schema", "Schema")
    yield "How a node's file is written, in its `[data]` or for all in `[task]`:"
    yield from fields_of("p2pfl.learn.table.rows", "Layout")
    yield from worlds()


def worlds() -> Iterator[str]:
    from sim.worlds.model import WHO, tables

    yield from ("## World files", "", "For `--world` of the simulator. [Worlds](worlds.md) has examples.", "")
    who = ("nodes", *WHO)
    for each in tables():
        heading = f"[[{each.name}]]" if each.repeats else f"[{each.name}]"
        yield from (f"### {heading}", *keys(each, only=each.kinds.keys() - who, typed=False))
    where = "One of these in `[[slow]]`, `[[crash]]`, `[[join]]` and `[liars]`; at most one in `[churn]`:"
    yield from ("### Which nodes", "", f"{where} without it all honest nodes.")
    yield from keys(next(each for each in tables() if each.name == "churn"), only=who, typed=False)


def built_in_tasks() -> Iterator[str]:
    """Each built-in task with its options and their defaults, from its source: two of them would import torch."""
    from p2pfl.learn.load import BUILT_IN

    for name, (module, attribute) in BUILT_IN.items():
        if name == "csv":
            yield f"- {code(name)}: a table and its target column; its keys are [below](#keys-of-csv)."
            continue
        tree = definition(module, attribute)
        options = task_options(tree)
        words = prose((ast.get_docstring(tree) or "").replace("\n", " "))
        written = "; ".join(f"`{option}`" for option in options)
        yield f"- {code(name)}{f' ({written})' if written else ''}: {words}"
    yield ""


def task_options(tree: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """`key = default` of a task's keyword arguments, or of the fields of its class."""
    if isinstance(tree, ast.ClassDef):
        return [
            f"{node.target.id} = {literal(node.value)}"
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
    pairs = zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True)
    return [f"{node.arg} = {literal(default)}" for node, default in pairs if node.arg != "base_dir"]


def literal(node: ast.expr | None) -> str:
    value = ast.literal_eval(node) if node is not None else None
    return "not set" if value in (None, "") else json.dumps(value)


# -- specs -------------------------------------------------------------------------------------------------------------


def specs() -> Iterator[str]:
    import p2pfl.methods
    from p2pfl import aggregate
    from p2pfl.compress import list_stages
    from p2pfl.config.sections import SCHEDULES
    from p2pfl.core.settings import STALENESS
    from sim.attacks import ATTACKS

    yield from ("# Specs", "", f"{HOME} A spec is a name, and after a colon its parameters: `hampel:b=1,cut=2`.", "")
    yield from (
        "## Rules",
        "",
        "Values of `rule` in `[gossip]`: `p2pfl list rules`. n counts a node's m neighbors and itself.",
    )
    yield from entries((*aggregate.RULES.values(), *aggregate.BEFORE.values()), cost="cost", bound="bound")
    yield from (
        "",
        "## Compressors",
        "",
        "Values of `compressor` in `[gossip]`: `p2pfl list compressors`.",
    )
    yield ""
    for stage, source in list_stages():
        yield from item(
            stage.written or stage.name, stage.means, {"example": code(stage.shown), "source": prose(source)}
        )
    yield from ("", "## Methods", "", "Values of `method` in `[training]`: `p2pfl list methods`.")
    yield from entries(p2pfl.methods.METHODS.values())
    yield from (
        "",
        "## Staleness",
        "",
        "Values of `staleness` in `[gossip]`: `p2pfl list staleness`. Parameters go by their place.",
    )
    yield from entries(STALENESS.values(), by_place=True)
    yield from ("", "## Schedules", "", "Values of `schedule` in `[training]`: how the learning rate changes.")
    yield from entries(SCHEDULES.values())
    yield from ("", "## Attacks", "", "For `--attack` of `p2pfl demo` and `p2pfl sim run`, and for world files.")
    yield from entries(ATTACKS.values(), by_place=True, knows="a liar knows")
    yield from topologies()


def entries(listed: Iterable[Any], *, by_place: bool = False, **more: str) -> Iterator[str]:
    """The entries of catalogs, with further fields of theirs under these words."""
    yield ""
    for entry in listed:
        facts = {parameter_name(each.name, each.default): parameter_text(each) for each in entry.parameters}
        facts |= {words: prose(str(getattr(entry, key))) for key, words in more.items()}
        name = entry.usage if by_place else entry.shown
        yield from item(name, getattr(entry, "shows", entry.means), facts | {"source": prose(entry.source)})


def item(name: str, means: str, facts: Mapping[str, str]) -> Iterator[str]:
    """A name with its meaning, and below it each fact that is not empty."""
    yield f"- {code(name)}: {sentence(means)}"
    yield from (f"    - {key}: {text}" for key, text in facts.items() if text)


def parameter_name(name: str, default: Any) -> str:
    known = default is not None and default is not inspect.Parameter.empty
    return code(f"{name}={shown(default)}" if known else name)


def parameter_text(parameter: Any) -> str:
    return f"{sentence(parameter.means)} Allowed: {prose(parameter.kind.allowed)}."


def topologies() -> Iterator[str]:
    from topologies.families import FAMILIES
    from topologies.family import GraphKind

    yield from (
        "",
        "## Topologies",
        "",
        "Values of `topology` in `[federation]`: `p2pfl topology list`. n counts the nodes.",
        "",
    )
    for kind in GraphKind:
        chosen = {name: family for name, family in FAMILIES.items() if family.kind is kind}
        if chosen:
            yield from (f"### Topologies: {kind.name.lower().replace('_', ' ')}", "")
        for name, family in chosen.items():
            facts = {
                parameter_name(key, each.default): f"{sentence(each.meaning)} Allowed: {prose(each.allowed)}."
                for key, each in family.parameters.items()
            }
            words = {"degree": family.degree, "lambda_2": family.connectivity, "source": family.source}
            yield from item(name, family.rule, facts | {key: prose(text) for key, text in words.items()})
        yield ""


def shown(value: Any) -> str:
    """A default as a spec has it."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else value if isinstance(value, str) else f"{value:g}"


# -- Python ------------------------------------------------------------------------------------------------------------

BESIDE: Mapping[str, Mapping[str, str]] = {
    "A task": {
        "NodeContext": "p2pfl.learn.task",
        "LearnerFactory": "p2pfl.learn.task",
        "Metric": "p2pfl.learn.metrics",
        "named": "p2pfl.learn.metrics",
        "bootstrap": "p2pfl.learn.intervals",
        "RoundStart": "p2pfl.learn.interface",
        "Score": "p2pfl.learn.interface",
    },
    "A method": {
        "Round": "p2pfl.methods.method",
        "New": "p2pfl.methods.method",
        "NodeVectors": "p2pfl.methods.method",
    },
    "A rule": {"Neighborhood": "p2pfl.aggregate.interface", "Mixture": "p2pfl.aggregate.interface"},
    "A result": {
        "NodeReport": "p2pfl.reporting.report",
        "NodeResult": "p2pfl.reporting.status",
        "Contraction": "p2pfl.reporting.report",
        "Cost": "p2pfl.reporting.report",
        "References": "p2pfl.reporting.measures",
        "Point": "p2pfl.reporting.measures",
    },
}
"""Names beside `__all__` that a user's code gets or makes."""


def python_api() -> Iterator[str]:
    yield from ("# Python API", "", f"{HOME} A name that is not on it may change.", "")
    for package in ("p2pfl", "sim"):
        module = import_module(package)
        yield from (f"## from {package} import", "")
        for name in module.__all__:
            yield from described(name, module._HOME[name], f"from {package} import {name}")  # noqa: SLF001 - its map
    for title, names in BESIDE.items():
        yield from (f"## {title}: names beside", "")
        for name, home in names.items():
            yield from described(name, home, f"from {home} import {name}")


def described(name: str, home: str, how: str) -> Iterator[str]:
    """A class or a function with its signature, its docstring, and what is public in it."""
    tree = definition(home, name)
    yield from (f"### {name}", "")
    start = next((node for node in functions(tree) if node.name == "__init__"), None)
    own = tree if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) else start
    yield from fenced("\n\n".join(filter(None, (how, signature(own, name) if own else ""))), "python")
    yield from paragraphs(ast.get_docstring(tree) or "")
    if isinstance(tree, ast.ClassDef):
        yield from attributes(tree)
        for node in functions(tree):
            if not node.name.startswith("_") and not is_plain(node):
                yield from method(node, name)


def fields_of(module: str, name: str) -> Iterator[str]:
    """The table of a struct whose fields are keys of a file."""
    rows = (
        (code(key), sentence(text), toml_default(module, default), type_in_words(kind))
        for key, kind, default, text in fields_in(definition(module, name))
    )
    return table(("key", "meaning", "default", "type"), rows)


def type_in_words(kind: str) -> str:
    """The type of a key by the annotation of its field: a mapping is a table, a choice of words is a text."""
    known = {
        "bool": TYPES["boolean"],
        "int": TYPES["integer"],
        "float": TYPES["number"],
        "tuple": TYPES["array"],
        "Mapping": "table",
    }
    return next((words for name, words in known.items() if re.match(rf"{name}\b", kind)), "text")


def toml_default(module: str, default: str) -> str:
    """A default as TOML has it; one that is a constant of its module is looked up there."""
    if not default:
        return "not set"
    value = constant(module, default) if default.isidentifier() and default.isupper() else ast.literal_eval(default)
    return "not set" if value in ("", (), {}) else code(json.dumps(value))


def attributes(tree: ast.ClassDef) -> Iterator[str]:
    """The fields of a class, each with the text below it."""
    for name, kind, default, text in fields_in(tree):
        field = f"{name}{': ' if kind else ''}{kind}{' = ' if default else ''}{default}"
        yield f"- `{field}`" + (f": {prose(text)}" if text else "")
    for node in functions(tree):
        if is_plain(node):
            yield f"- `{node.name}: {ast.unparse(node.returns)}`" if node.returns else f"- `{node.name}`"
    yield ""


def fields_in(tree: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """Name, annotation, default and text of each public field; empty where there is none."""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and not target.id.startswith("_"):
                kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
                text = after.value.value if is_text(after) else ""
                yield target.id, kind, default_of(node.value), text


def default_of(value: ast.expr | None) -> str:
    """A default as it is written; of `field(...)` what it makes, or nothing."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "msgspec.field"):
        made = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
        return made.get("default") or {"dict": "{}", "list": "[]"}.get(made.get("default_factory", ""), "")
    return "" if value is None else ast.unparse(value)


def is_plain(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A property of which the class's own text says what it is."""
    return "property" in map(ast.unparse, node.decorator_list) and not ast.get_docstring(node)


def is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def method(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> Iterator[str]:
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    text = ast.get_docstring(node) or ""
    yield from (f"#### {owner}.{node.name}", "")
    if "property" in marks:
        kind = f": {ast.unparse(node.returns)}" if node.returns else ""
        yield from fenced(f"{node.name}{kind}  # property", "python")
    else:
        yield from fenced(signature(node, f"{owner}.{node.name}" if "classmethod" in marks else node.name), "python")
    yield from paragraphs(text)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """As it is written, without `self`; broken at its arguments where it is long."""
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(node.args))
    ends = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{begin}{name}({arguments}){ends}"
    if len(line) <= WIDTH:
        return line
    parts = split_arguments(node)
    return "\n".join([f"{begin}{name}(", *(f"    {part}," for part in parts), f"){ends}"])


def split_arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Each argument with its annotation and default."""
    given = node.args
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + list(given.defaults)
    parts = [argument(*pair) for pair in zip(places, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    if given.vararg:
        parts.append("*" + argument(given.vararg, None))
    elif given.kwonlyargs:
        parts.append("*")
    parts += [argument(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return parts + (["**" + argument(given.kwarg, None)] if given.kwarg else [])


def argument(node: ast.arg, default: ast.expr | None) -> str:
    return f"{ast.unparse(node)}{'' if default is None else f' = {ast.unparse(default)}'}"


def functions(tree: Any) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in getattr(tree, "body", []) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of a module, which is read and not imported. Raises LookupError: there is none."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"no module {module}")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def constant(module: str, name: str) -> Any:
    """The value of a constant that is written out. Raises LookupError: there is none."""
    for node in tree_of(module).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value and name in map(ast.unparse, targets):
            return ast.literal_eval(node.value)
    raise LookupError(f"{module} has no {name}")


def definition(module: str, name: str) -> Any:
    """The syntax tree of a class or a function. Raises LookupError: there is none."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = next((node for node in tree_of(module).body if isinstance(node, kinds) and node.name == name), None)
    if tree is None:
        raise LookupError(f"{module} has no {name}")
    return tree


# -- metrics ---------------------------------------------------------------------------------------------------------


def full_status() -> dict[str, Any]:
    """A status in which every metric has a sample."""
    from p2pfl.core.limits import Fault
    from p2pfl.features.status.prometheus import OF_NEIGHBOR, OF_NODE

    status: dict[str, Any] = dict.fromkeys(("node", "federation", "rule", "software", "phase"), "...")
    for metric in OF_NODE:
        outer, _, inner = metric.key.partition(".")
        status[outer] = {**status.get(outer, {}), inner: 1} if inner else 1
    neighbor: dict[str, Any] = dict.fromkeys((metric.key for metric in OF_NEIGHBOR), 1)
    neighbor |= {"name": "...", "faults": {next(iter(Fault)).value: 1}}
    return status | {"metrics": {"...": 1}, "alarms": {"...": 1}, "standing_alarms": ["..."], "neighbors": [neighbor]}


def prometheus() -> Iterator[str]:
    from p2pfl.features.status.prometheus import exposition

    lines = exposition(full_status()).splitlines()
    texts = dict(line.removeprefix("# HELP ").split(" ", 1) for line in lines if line.startswith("# HELP "))
    kinds = dict(line.removeprefix("# TYPE ").split(" ", 1) for line in lines if line.startswith("# TYPE "))
    samples = {re.split(r"[{ ]", line)[0]: re.findall(r'(\w+)="', line) for line in lines if not line.startswith("#")}
    yield from ("# Prometheus metrics", "", f"{HOME} `GET /metrics` of a node's status page has these lines.")
    yield "A metric that a node cannot tell has no line."
    rows = ((code(name), kinds[name], ", ".join(samples[name]) or "none", prose(texts[name])) for name in texts)
    yield from table(("name", "type", "labels", "meaning"), rows)


# -- limits ----------------------------------------------------------------------------------------------------------

ABOUT_LIMITS = """
Whoever can reach a node, and each member, costs it at most this, whatever they send and however long it runs; they are
constants of the program. "Honest" says what an honest node uses, reckoned from the protocol and not measured.
`p2pfl check FEDERATION --limits` adds what some are in your federation. A test walks all containers of nodes whose
neighbors come and go and lie, and fails by the name of what grows beside these limits.
"""


def limits() -> Iterator[str]:
    from p2pfl.cli.check import limit_rows

    yield from ("# Limits", "", HOME, ABOUT_LIMITS)
    rows = (
        (code(row["limit"]), *(prose(row[key] or "") for key in [*row][1:])) for row in limit_rows({}, in_words=True)
    )
    yield from table(("name", "value", "meaning", "honest"), rows)


# -- alarms ----------------------------------------------------------------------------------------------------------

ABOUT_ALARMS = """
An alarm is something that a person should know. Each is logged as a warning, counted by kind in `GET /status` and
`/metrics` (`p2pfl_alarms_total`), and shown on the [page](../how-to/monitoring.md) and by `p2pfl watch` while it
stands. The node carries on by itself, except after `two-places` and `removed`. If one kind repeats about one neighbor,
the first few are logged, then ever fewer. Members tell each other which kinds stand, so any page shows them all; the
texts are on the page of the member itself.
"""
MORE_OF_ALARMS: Mapping[str, str] = {
    "no-budget": "See [Privacy](../how-to/privacy.md#budget).",
    "loss-grows": "The node compares medians of ten rounds, or of ten tests: the latest with the lowest. The alarm "
    "needs a factor of 1.25 and a growth by a tenth of the first loss. The loss of the own rounds counts as grown if "
    "it has grown by a quarter as much. If it has not, the line is `overfits`: the model fits the node's own rows ever "
    "better, and [`stop`](../how-to/training.md#when-to-stop) ends training before that. If members are away, or were "
    "since the loss began to grow, the line is `forgets`. A loss above that of the untrained model is an alarm in any "
    "case.",
}
"""Further text below an alarm, in Markdown."""


NEWS: Mapping[str, str] = {
    "neighbor-back": "A session with the neighbor is open again, or brings data again.",
    "back": "There is news again of a member that is not a neighbor.",
    "budget-begun": "The node begins to train with a privacy budget.",
    "budget-spent": "The node has spent its privacy budget and has stopped training.",
    "charter-in-force": "A newer charter takes effect.",
    "relay-back": "The node is registered at all its relays again.",
    "relay-ticket-renewed": "The node has a new ticket for relays.",
    "disk-roomy": "There is room for a snapshot again.",
    "enough-neighbors": "The robust rule has enough neighbors again.",
    "federation-changed": "Members, their addresses or keys, the rounds or the graph have changed.",
    "finished": "This node, or a member, has done all its rounds.",
    "forgets": "The loss on the common test set grows while members are away whose data nobody else has.",
    "goes-on": "A pause of this node is over.",
    "joined": "This node starts at the round that the others have reached, or learns of a new member.",
    "kept-again": "The robust rule keeps part of the neighbors' models again.",
    "looks-alike": "A neighbor that looked unlike the others, or sent back what it got, looks like them again.",
    "left": "A member has stopped before all its rounds were done.",
    "loss-back": "The loss is close to its best again.",
    "member-ended": "The launcher of all nodes says that a member's process has ended and will not be started again.",
    "neighbor-away": "The session with a neighbor has ended.",
    "neighbor-pauses": "A neighbor has said for how long it ends its sessions, as the bounds in its file say.",
    "new-life": "A member has started again and lost what it had not stored.",
    "not-alone": "A neighbor is connected.",
    "not-heard": "There has been no news of a member that is not a neighbor for a while.",
    "overfits": "The loss on the test rows grows, while the model fits the node's own rows better and better.",
    "pauses": "This node ends its sessions and trains no round, as the bounds in its file say.",
    "probation": "A quarantine is over, and the neighbor is on trial.",
    "software-agrees": "The member runs the same version.",
    "started": "The node has started.",
    "state-fetched": "The node was behind in rounds that are sums, and goes on from the others' state.",
    "sum-done": "A secure sum came about.",
    "all-in": "All members are in a sum.",
    "storage-restored": "The state can be written to disk again.",
    "waits-for": "The node has done all its rounds, and waits for members that are slower or away.",
    "trained-enough": "The node has stopped training, because the condition `stop` was met.",
}
"""Kinds of events that are reported but are not alarms; some of them end one (`AlarmText.ended_by`)."""


def alarms() -> Iterator[str]:
    from p2pfl.features import FEATURES
    from p2pfl.node.feature import alarm_texts
    from p2pfl.reporting.alarms import LASTS_S

    yield from ("# Alarms", "", HOME, "", *ABOUT_ALARMS.strip().splitlines(), "")
    alone = f"{LASTS_S / 60:g} minutes have passed without another one."
    for kind, alarm in alarm_texts(FEATURES).items():
        ends = alone if alarm.ended_by is None else NEWS[alarm.ended_by]
        rows = {"means": alarm.means, "the node": alarm.does, "to do": alarm.advice, "ends when": ends}
        yield from (f"## {kind}", "", "| | meaning |", "|---|---|")
        yield from (f"| {name} | {prose(text)} |" for name, text in rows.items())
        yield from ("", *filter(None, (MORE_OF_ALARMS.get(kind),)), "")
    yield from ("## Events that are no alarm", "", "The log and the page show most of these; some only end an alarm.")
    yield from table(("event", "meaning"), ((code(kind), prose(text)) for kind, text in NEWS.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
