"""`p2pfl sim`: its commands with their options; what they do is imported when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from p2pfl.console import Named
from p2pfl.console.output import format_option

COMMANDS: Mapping[str, str] = {
    "run": "One federation in one world: what it learns, what it costs.",
    "sweep": "Many runs from one file, in parallel: means and confidence intervals.",
    "compare": "Several graphs with very many nodes: one table, one picture.",
    "plot": "A picture of reports, side by side, or of a sweep.",
}
"""One line of help per command name, which is also the module that carries it out."""
CHECKS = "sim.cli.check:ArraysCheck"
"""The part of `p2pfl check --all` that the simulator brings."""
COMPARED = 100
COMPARISON = "comparison.png"
SHARED = ("rounds", "partition", "compressor", "method", "seed")
"""Options of `compare` that are those of `run`."""

EXAMPLES = """\b
Examples:
  p2pfl sim run
  p2pfl sim run --nodes 1000 --topology random-regular:degree=4 --rounds 20
  p2pfl sim run ward-7 --world bad.toml --report bad.json
  p2pfl sim plot good.json bad.json --output both.png
  p2pfl sim sweep sweep.toml
"""


RUN_EPILOG = """\b
Examples:
  p2pfl sim run
  p2pfl sim run --nodes 1000 --topology random-regular:degree=4 --rounds 20
  p2pfl sim run ward-7 --world bad.toml --report bad.json

World files: docs/reference/worlds.md. The figures: docs/how-to/simulate.md.
"""


@click.command("run", epilog=RUN_EPILOG)
@click.argument("federation", required=False, type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(2), metavar="N", help="Number of nodes.  [default: 8]")
@click.option("--topology", metavar="SPEC", help="See `p2pfl topology list`.  [default: ring]")
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Rounds of each node.  [default: 40]")
@click.option(
    "--partition",
    metavar="SPEC",
    help="Who holds which rows: iid, shards:K, dirichlet:ALPHA[,LEAST], classes:K, sizes:A,B,..., draw:K.  "
    "[default: shards:2; over 500 nodes draw:14]",
)
@click.option("--rule", metavar="SPEC", help="See `p2pfl list rules`.  [default: mean]")
@click.option("--compressor", metavar="SPEC", help="See `p2pfl list compressors`.  [default: q4]")
@click.option("--method", metavar="SPEC", help="See `p2pfl list methods`.")
@click.option("--closing", type=click.Choice(["mix", "train"]), help="What closing rounds do.  [default: mix]")
@click.option("--privacy", metavar="SPEC", help="Keys of [privacy], as epsilon=8; or none.")
@click.option("--byzantine", type=click.IntRange(0), metavar="K", help="Number of liars, chosen at random.")
@click.option("--attack", metavar="NAME", help="See `p2pfl list attacks`.")
@click.option("--world", metavar="FILE", help="Speeds, links, faults, liars.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of all randomness.  [default: 0]")
@click.option("--arrays", is_flag=True, help="As arrays, for very many nodes.")
@click.option("--clock", type=click.Choice(["apart", "in-step"]), help="Of --arrays.  [default: apart]")
@click.option(
    "--references/--no-references",
    default=None,
    help="Also each node alone; no: nothing else.",
)
@click.option("--report", type=click.Path(path_type=Path), help="Write the report, as JSON; - is stdout.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@format_option("table", "json")
def run_command(**asked: Any) -> int:
    """Simulate a federation: the code of every node, under virtual time.

    FEDERATION is a federation file, or the folder of its federation.toml, whose values are the defaults. Without it,
    nodes learn the built-in digits. A node whose folder is beside the file learns from its own data. Exits with 130
    after Ctrl-C.
    """
    from sim.cli.run import run  # noqa: PLC0415 - `--help` stays instant

    return run(**asked)


SWEEP_EPILOG = """\b
A file, sweep.toml:
  [sweep]
  nodes = 20
  rounds = 40
  seeds = 5                # 0 to 4
  [axes]
  topology = ["ring", "random-regular:degree=4", "complete"]
  compressor = ["none", "q4"]

\b
Examples:
  p2pfl sim sweep sweep.toml       run it, or go on with it
  p2pfl sim plot sweep-results     draw it
"""


@click.command("sweep", epilog=SWEEP_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="The folder of reports and results.  [default: FILE's name-results]",
)
@click.option("--jobs", type=click.IntRange(1), help="How many runs at a time.  [default: one for each core]")
@click.option("--scheduler", metavar="HOST:PORT", help="Run on the Dask cluster of this scheduler.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@format_option("table", "json", "csv")
def sweep_command(**asked: Any) -> int:
    """Run every combination of the axes in FILE over several seeds: a table with 95% confidence intervals.

    Every run leaves a report in the folder, under a hash of all that it depends on. Started again after a stop, a sweep
    goes on where it was, and runs again what failed; after a change of FILE it runs what is new. Exits with 1 if a run
    failed, 130 after Ctrl-C.
    """
    from sim.cli.sweep import sweep  # noqa: PLC0415 - `--help` stays instant

    return sweep(**asked)


COMPARE_EPILOG = """\b
Examples:
  p2pfl sim compare ring torus exponential random-regular:degree=4
  p2pfl sim compare ring base:k=1 -n 1000 --rounds 20 --plot graphs.png
  p2pfl sim compare ring torus --clock apart

\b
Columns, after the last round and the closing rounds:
  worst, mean  accuracy on the test set: of the worst node, of all
  apart        root mean square of the models' distances to their mean,
               relative to it (the consensus distance)
  sent         by a node
  lambda       lambda_2, algebraic connectivity; of a schedule: of all edges
  mixing       the contraction, the factor by which an exchange on every edge
               shrinks the distance between the models: predicted from the
               spectrum, then measured in the closing rounds

One seed each: repeat with another --seed before you trust a small difference.
"""


@click.command(
    "compare", epilog=COMPARE_EPILOG, params=[option for option in run_command.params if option.name in SHARED]
)
@click.argument("graphs", metavar="GRAPH...", nargs=-1, required=True)
@click.option("-n", "--nodes", type=click.IntRange(2), default=COMPARED, show_default=True, help="Number of nodes.")
@click.option(
    "--clock",
    type=click.Choice(["in-step", "apart"]),
    default="in-step",
    show_default=True,
    help="All in step, or each at its own pace.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw all against bytes.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@format_option("table", "json")
def compare_command(**asked: Any) -> int:
    """Train the built-in digits on each GRAPH, and compare: what nodes learn, how far apart they are, what they send.

    GRAPH is a specification or a file, as for `--topology`: see `p2pfl topology list`. Nodes are arrays, as with
    `p2pfl sim run --arrays`. Exits with 130 after Ctrl-C.
    """
    from sim.cli.sweep import compare  # noqa: PLC0415 - `--help` stays instant

    return compare(**asked)


PLOT_EPILOG = """\b
Examples:
  p2pfl sim plot run.json
  p2pfl sim plot ring.json torus.json --x bytes --output compared.svg
  p2pfl sim plot sweep-results
"""


@click.command("plot", epilog=PLOT_EPILOG)
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"A .png, .svg or .pdf file.  [default: REPORT's name with .png; {COMPARISON} of several]",
)
@click.option(
    "--x",
    type=click.Choice(["time", "rounds", "bytes"]),
    help="The horizontal axis.  [default: time; rounds if real and simulated runs are mixed; a sweep's axes]",
)
def plot_command(**asked: Any) -> None:
    """Draw runs over time: accuracy from the worst to the best node, consensus distance, bytes.

    Reports of real runs and of simulated ones go together. One REPORT may be a sweep's folder, or its results.json:
    then every combination is a point with its confidence interval.
    """
    from sim.cli.sweep import plot  # noqa: PLC0415 - `--help` stays instant

    plot(**asked)


class SimCommands(Named):
    def lines(self) -> Mapping[str, str]:
        return COMMANDS

    def find(self, name: str) -> Any:
        commands = {"run": run_command, "sweep": sweep_command, "compare": compare_command, "plot": plot_command}
        return commands[name]


@click.group(cls=SimCommands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
def sim() -> None:
    """Simulate a federation in one process, under virtual time. Every node runs its own code; a seed repeats a run."""
