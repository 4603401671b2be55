"""Which keys the two files have and what each may be. Defaults are those of the classes in `model`."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.config.compressor import compressor
from p2pfl.config.keys import public_key
from p2pfl.config.kinds import Kind, address, choice, name, number, or_none, pair, text, texts, whole
from p2pfl.config.method import method
from p2pfl.config.rule import rule
from p2pfl.config.staleness import staleness

Kinds = Mapping[str, Kind]

TABLES = ("federation", "task", "training", "gossip", "node", "edge")

FEDERATION: Kinds = {"name": name(), "seed": whole(0), "topology": text()}

TASK: Kinds = {"name": text()}

TRAINING: Kinds = {
    "rounds": whole(1),
    "time_s": number(0, above=True),
    "local_steps": whole(1),
    "local_epochs": whole(1),
    "batch_size": whole(1),
    "optimizer": choice("sgd", "adam", "adamw"),
    "learning_rate": number(0, above=True),
    "momentum": number(0, 1, below=True),
    "weight_decay": number(0),
    "method": method(),
    "speed_correction": number(1),
    "closing_rounds": whole(0),
    "when_through": choice("train", "mix"),
    "evaluate_every": whole(0),
}

OLD_VARIATE = "control_variate"
OLD_TRAINING: Kinds = {OLD_VARIATE: number(0)}
"""Read still: what `method` was before there were several."""

GOSSIP: Kinds = {
    "compressor": compressor(),
    "share": texts(),
    "rule": rule(),
    "staleness": staleness(),
    "gamma": number(0, 1, above=True),
    "start_wait_s": number(0),
    "linger_s": number(0),
    "max_wait_s": number(0, above=True),
    "exchanges_per_s": number(0, above=True),
    "audit_every": whole(1),
}

MEMBER: Kinds = {"name": name(), "key": public_key(), "address": address(1)}

EDGE: Kinds = {"between": pair(), "compressor": GOSSIP["compressor"]}

NODE: Kinds = {
    "key_file": text(),
    "state_dir": text(),
    "listen": address(0),
    "status_listen": or_none(address(0)),
    "durability": choice("auto", "exchange", "snapshot"),
    "snapshot_s": number(0, above=True),
    "threads": whole(1, 1024),
    "nice": whole(0, 19),
}
