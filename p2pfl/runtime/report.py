"""One report of a run of real processes, in the shape that a simulated run has too.

Honest about the dead: a node that did not reach its end is listed with how it ended, and no figure of it enters a
mean. Nor does one of a liar: the result is what it made of the honest; nor one of an older model than the node's last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from p2pfl.errors import StorageError
from p2pfl.learn.interface import Vector
from p2pfl.reporting.figures import by_compressor, configuration, contraction, overall_staleness, spread
from p2pfl.reporting.liars import held_against
from p2pfl.reporting.sketch import consensus_distance
from p2pfl.runtime.fleet import Child, Fleet, Line
from p2pfl.runtime.parts import replay
from p2pfl.storage import peek
from topologies import Topology, describe


def final_report(fleet: Fleet, history: Sequence[Line]) -> Line:
    """Called after every node has ended: the consensus distance is computed from the models on disk."""
    federation = fleet.federation
    rows = [_node(child) for child in fleet.children]
    ended = [row for row in rows if row["finished"] and not row["byzantine"]]
    tested = [row for row in ended if not row["test_is_stale"]]
    graph = describe(Topology(federation.topology, len(rows), federation.edges, federation.seed), "sample-weighted")
    by_name = {
        row["name"]: _model(fleet, child) for child, row in zip(fleet.children, rows, strict=True) if row in ended
    }
    models = list(by_name.values())
    succeeded = _attack_success(fleet, by_name)
    for row in rows:
        row["attack_success"] = succeeded.get(row["name"])
    return {
        "nodes": rows,
        "topology": federation.topology,
        "algebraic_connectivity": graph["algebraic_connectivity"],
        "rounds": {row["name"]: row["rounds"] for row in rows},
        "accuracy": spread(row["accuracy"] for row in tested),
        "local_accuracy": spread(row["local_accuracy"] for row in ended),
        "loss": spread(row["test_loss"] for row in tested),
        "attack": fleet.lies and fleet.lies.spec,
        "attack_success": spread(succeeded.values()),
        "consensus_distance": consensus_distance(np.stack(models)) if models else None,
        "bytes_sent": sum(row["bytes_sent"] or 0 for row in rows),
        "messages_sent": sum(row["messages_sent"] or 0 for row in rows),
        "compressors": by_compressor(federation, _sent(fleet, rows)),
        "wall_time_s": round(fleet.elapsed_s, 3),
        "staleness": overall_staleness(row["staleness"] for row in ended),
        "contraction": contraction(
            federation,
            [row["samples"] for row in rows],
            [_closing_lines(child) for child in fleet.honest],
            ends=_honest_ends(fleet),
            size=models[0].size if models else None,
        ),
        "rule": federation.gossip.rule,
        "held_against": held_against(row for row in rows if not row["byzantine"]),
        "died": [row["name"] for row in rows if row["died"]],
        "byzantine": [row["name"] for row in rows if row["byzantine"]],
        "stopped": fleet.stopping,
        "history": list(history),
        "config": configuration(federation),
        "seed": federation.seed,
        "simulated": False,
    }


def _sent(fleet: Fleet, rows: Sequence[Line]) -> dict[tuple[int, int], int]:
    """Bytes by (sender, receiver), as far as nodes have left a result."""
    index = {member.name: member.index for member in fleet.federation.members}
    return {
        (sender, index[neighbor["name"]]): neighbor["bytes_sent"]
        for sender, row in enumerate(rows)
        for neighbor in row["neighbors"] or []
    }


def _attack_success(fleet: Fleet, models: Mapping[str, Vector]) -> dict[str, float]:
    if fleet.lies is None or not models:
        return {}
    return fleet.lies.attackers.success(fleet.lies.spec, fleet.federation, fleet.honest[0].node, models)


def _model(fleet: Fleet, child: Child) -> Vector:
    loaded = peek(child.node.state_dir)
    if loaded is None:
        raise StorageError(f"{child.name} finished, and its state is gone from {child.node.state_dir}")
    return replay(fleet.federation, loaded).model


def history_point(fleet: Fleet) -> Line | None:
    """The figures of the report as they are now, from the latest line of every honest node; None before the first."""
    lines = [child.last for child in fleet.honest if child.lines and not child.died]
    if not lines:
        return None
    sketches = [line["sketch"] for line in lines if line.get("sketch")]
    return {
        "time_s": round(fleet.elapsed_s, 3),
        "rounds": spread(line["rounds"] for line in lines),
        "accuracy": spread(line["accuracy"] for line in lines),
        "loss": spread(line["test_loss"] for line in lines),
        "train_loss": spread(line["loss"] for line in lines),
        "consensus_distance": consensus_distance(np.array(sketches)) if len(sketches) > 1 else None,
        "neighbor_distance": spread(line["neighbor_distance"] for line in lines),
        "staleness": spread(line["staleness"]["mean"] for line in lines),
        "bytes_sent": sum(line["bytes_sent"] for line in lines),
        "messages_sent": sum(line["messages_sent"] for line in lines),
        "running": sum(child.exit_code is None for child in fleet.children),
    }


def _node(child: Child) -> Line:
    result = child.result()
    line = child.last
    source = result or line
    finished = bool(result and result["finished"])
    keys = (
        "failed_rounds",
        "rounds",
        "accuracy",
        "test_loss",
        "tested_round",
        "tested_version",
        "test_is_stale",
        "loss",
        "bytes_sent",
        "messages_sent",
        "staleness",
        "exchanges",
    )
    row: Line = {"name": child.name, "state": child.state, "finished": finished, "died": child.died}
    row["byzantine"] = child.byzantine
    row |= {key: source.get(key) for key in keys}
    row["rounds_without_neighbor"] = source.get("rounds_without_neighbor") or 0
    row["ended_by"] = (result or {}).get("ended_by")
    row["stranded"] = child.stranded
    if result is None:  # it was killed: what it tested last is final by chance alone
        row["test_is_stale"] = row["accuracy"] is not None and line["tested_version"] != line["version"]
    more = ("local_accuracy", "samples", "steps", "alarms", "wall_time_s", "cpu_time_s", "neighbors", "durability")
    row |= {key: (result or {}).get(key) for key in (*more, "rounds_mixed", "rounds_alone")}
    # Killed under us, then started by hand and brought to its end: both are told.
    row["restarted"] = child.died and finished
    row["log"] = str(child.log_path)
    return row


def _honest_ends(fleet: Fleet) -> float:
    """How many ends of edges one round uses at honest nodes."""
    federation = fleet.federation
    honest = sum(len(federation.neighbors(federation.member(child.name).index)) for child in fleet.honest)
    return federation.edges_at_once * honest / max(1, len(federation.edges))


def _closing_lines(child: Child) -> dict[int, Line]:
    return {line["closed"]["closing_rounds"]: line["closed"] for line in child.lines if "closed" in line}
