"""A report on a terminal: the nodes, or the worst of many, and then what the run says as a whole."""

from __future__ import annotations

from collections import Counter
from typing import Any

from p2pfl.cli.output import cell, node_rows, size, write_facts, write_rows
from p2pfl.reporting.history import ModelScore
from p2pfl.reporting.report import Batching, NodeReport, Report

MOST_ROWS = 20
WORST = 5
MOST_NAMES = 8


def show(report: Report) -> None:
    nodes = report.nodes
    if len(nodes) <= MOST_ROWS:
        write_rows(node_rows(nodes), "table")
    else:
        rows = node_rows(_worst(nodes))
        write_rows(rows, "table", title=f"the worst {len(rows)} of {len(nodes):,} nodes")
    write_facts(
        _learned(report)
        | {" ": ""}
        | _alone(report)
        | _cost(report)
        | {"  ": ""}
        | _graph(report)
        | {"   ": ""}
        | _computed(report)
    )


def _worst(nodes: list[NodeReport]) -> list[NodeReport]:
    """The honest nodes that finished and learned least; of all nodes where none did."""
    ended = [node for node in nodes if node.finished and not node.byzantine] or nodes

    def merit(node: NodeReport) -> tuple[bool, float]:
        accuracy, loss = node.accuracy, node.test_loss
        known = accuracy if accuracy is not None else None if loss is None else -loss
        return known is not None, known or 0.0

    return sorted(ended, key=merit)[:WORST]


def _learned(report: Report) -> dict[str, Any]:
    accuracy, loss = report.accuracy, report.loss
    return {
        "nodes": _standing(report.nodes),
        "died": _names(report.died),
        "byzantine": _names(report.byzantine),
        "alarms": _alarms(report.nodes),
        **_mixed(report),
        "accuracy, worst honest node": accuracy and accuracy.min,
        "accuracy, mean of the honest": accuracy and accuracy.mean,
        **_attacked(report),
        "loss, mean": loss and loss.mean,
        "the mean of the honest models": _figure(report.mean_model) if report.mean_model else None,
        "consensus distance": report.consensus_distance,
    }


def _mixed(report: Report) -> dict[str, Any]:
    """With the mean there is nothing to tell: every exchange mixes."""
    honest = [node for node in report.nodes if not node.byzantine and node.rounds_mixed is not None]
    if not honest:
        return {}
    mixed, alone = sum(node.rounds_mixed or 0 for node in honest), sum(node.rounds_alone or 0 for node in honest)
    return {
        "rule": report.rule,
        "rounds that the rule mixed": f"{mixed:,}" + (f", and {alone:,} with too few neighbors" if alone else ""),
    }


def _attacked(report: Report) -> dict[str, Any]:
    """How often poisoned data led the honest nodes' models where they should."""
    success = report.attack_success
    if not success:
        return {}
    return {
        "attack": report.attack,
        "attack success, mean of the honest": success.mean,
        "attack success, from least to most": f"{cell(success.min)} to {cell(success.max)}",
    }


def _standing(nodes: list[NodeReport]) -> str:
    states = Counter(node.state for node in nodes)
    return ", ".join(f"{count:,} {state}" for state, count in states.most_common())


def _alarms(nodes: list[NodeReport]) -> str | None:
    total: Counter[str] = Counter()
    for node in nodes:
        total.update(node.alarms or {})
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(total.items())) or None


def _names(names: list[str]) -> str | None:
    if not names:
        return None
    more = f", ... ({len(names):,} in all)" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _alone(report: Report) -> dict[str, Any]:
    """What the same learning gives without a network of peers."""
    facts: dict[str, Any] = {}
    if report.reference is None:
        return facts
    central, fedavg = report.reference.centralized, report.reference.fedavg
    if central is not None and central.one_node and central.all_nodes:
        runs = {"as many steps as a node": central.one_node, "as many as all nodes": central.all_nodes}
        for words, run in runs.items():
            facts[f"all data in one place, {words}"] = f"{_figure(run)}, {run.steps:,} steps"
    if fedavg:
        facts["a server that averages each round"] = f"{_figure(fedavg)}, {size(fedavg.bytes_sent or 0)}"
    return facts | ({"    ": ""} if facts else {})


def _figure(score: ModelScore) -> str:
    return f"loss {cell(score.loss)}" if score.accuracy is None else f"accuracy {cell(score.accuracy)}"


def _cost(report: Report) -> dict[str, Any]:
    count, staleness, sent = len(report.nodes), report.staleness, report.bytes_sent or 0
    rounds, messages = [node.rounds or 0 for node in report.nodes], report.messages_sent or 0
    limit = ", ended by the limit" if report.reached_limit else ""
    return {
        "rounds of a node": _range(rounds),
        "virtual time": f"{report.virtual_time_s:.4g} s{limit}",
        "sent, by a node": f"{size(sent / count)} in {messages / count:,.0f} messages",
        "sent, in all": f"{size(sent)} in {messages:,} messages",
        "staleness": staleness and f"{staleness.mean:.3g} rounds, at most {staleness.max:,}",
    }


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}, mean {sum(values) / len(values):,.4g}"


def _graph(report: Report) -> dict[str, Any]:
    """In a schedule lambda_2 is that of all edges, a round's contraction that of the period, spread over its rounds."""
    period = len(report.config["schedule"])
    of_union = f" of all {period} rounds' edges" if period else ""
    on_average = f", one of {period} rounds" if period else ""
    contraction = report.contraction
    return {
        "topology": report.topology,
        f"algebraic connectivity{of_union}": report.algebraic_connectivity,
        f"contraction, predicted{on_average}": contraction.predicted,
        f"contraction, measured{on_average}": contraction.measured,
    }


def _computed(report: Report) -> dict[str, Any]:
    cost, batching = report.cost, report.batching
    if cost is None or batching is None:
        raise ValueError("not the report of a simulation")
    parts = {
        "set up": cost.set_up_cpu_s,
        "run": cost.run_cpu_s,
        "evaluation": cost.evaluation_cpu_s,
        "report": cost.report_cpu_s,
    }
    if cost.abandoned_cpu_s:
        parts["a batched run that was given up"] = cost.abandoned_cpu_s
    spent = ", ".join(f"{words} {cpu_s:.3g}" for words, cpu_s in parts.items())
    speed = cost.node_rounds_per_cpu_s
    return {
        "seed": report.seed,
        "digest": report.digest,
        "value digest": report.value_digest,
        "computed": _how(batching),
        "node-rounds a CPU-second": speed and f"{speed:,.0f}, without evaluation",
        "CPU-seconds": f"{cost.cpu_s:.3g}: {spent}",
        "events": f"{cost.events:,}",
        "peak memory": size(report.peak_memory_bytes or 0),
    }


def _how(batching: Batching) -> str:
    why = f" ({batching.why})" if batching.why else ""
    stable = "the model is batch-stable" if batching.batch_stable else "the model is not batch-stable"
    return f"operations {batching.operations}{why}; training {batching.training}; {stable}"
