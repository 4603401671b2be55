"""Four processes on this machine fine-tune adapters of one language model on four different texts.

python benchmarks/lora.py TEXTS --work DIR [--parts prepare,before,alone,pooled,lora,ffa,full,large]

TEXTS is a folder of four .txt files. `prepare` makes, with random weights and a tokenizer trained on these texts, a
model of about 20 million parameters, and trains it a little on the first quarter of all texts: that is the model
"before", so that adapters have something to adapt. The third eighth of a text is a node's own, and the last eightieth
of all texts is for tests. `alone` and `pooled` are references: adapters trained on one text, or on all at one place,
with as many steps as one node takes, and with as many as all nodes take together. `lora`, `ffa` and `full` are
federations: a ring of four nodes, each a process, with adapters, with their half B alone, and with the whole model in
fragments. `large` is one round of a model of 120 million, for the memory.

Perplexities are of a model on the test rows of all texts. Memory is measured while the nodes train, from
/proc/PID/smaps: PSS divides a page among the processes that share it, and anonymous pages are of one process alone.
DIR keeps the model, the federations and results.json, to which each part is added as it ends; --table prints them.
Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

PARTS = ("prepare", "before", "alone", "pooled", "lora", "ffa", "full", "large")
SHAPES = {
    "small": {"hidden_size": 448, "intermediate_size": 1152, "num_hidden_layers": 7, "num_attention_heads": 7},
    "large": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 12},
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
}
WORDS, BLOCK, BATCH, RANK = 4096, 64, 4, 8
LORA_RATE, FULL_RATE, FIRST_RATE = 2e-3, 3e-4, 1e-3
FULL_COMPRESSOR = "fragment:8+bf16"
LOOK_S = 1.0
SEED = 1

Results = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--shape", choices=("small", "tiny"), default="small")
    parser.add_argument("--first-steps", type=int, default=220, help="of the training before, of twice as many rows")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--local-steps", type=int, default=4)
    parser.add_argument("--table", action="store_true", help="print the results of DIR, and run nothing")
    given = parser.parse_args()
    given.work, given.texts = given.work.absolute(), given.texts.absolute()
    if given.table:
        print(tables(json.loads((given.work / "results.json").read_text())))
        return
    given.work.mkdir(exist_ok=True)
    parts = given.parts.split(",")
    if len(parts) == 1:
        run_part(parts[0], given)
        return
    for part in parts:  # each in a process of its own, so that nothing is in its memory
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--parts", part], check=True)
    print(tables(json.loads((given.work / "results.json").read_text())))


def run_part(part: str, given: argparse.Namespace) -> None:
    import torch  # noqa: PLC0415 - the launcher of several parts does without it

    torch.set_num_threads(1)
    work = given.work
    if part == "prepare":
        prepare(given)
    elif part == "before":
        keep(work, "before", {"perplexity": perplexities(learner_at(work, "own"), None, work)})
    elif part in ("alone", "pooled"):
        steps = given.rounds * given.local_steps
        if part == "alone":
            for name in texts_of(work):
                keep(work, f"alone: {name}", trained_at_one_place(work, f"own/{name}.txt", steps, f"alone-{name}"))
            keep(work, "means", means_of([f"alone-{name}" for name in texts_of(work)], work))
        else:
            nodes = len(texts_of(work))
            keep(work, "pooled, steps of one node", trained_at_one_place(work, "own", steps, "pooled"))
            keep(work, "pooled, steps of all nodes", trained_at_one_place(work, "own", nodes * steps, "pooled-all"))
    else:
        keep(work, part, federation(part, given))


def keep(work: Path, name: str, result: Any) -> None:
    """Add a result to the file of results."""
    file = work / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(results | {name: result}, indent=1))
    print(name, json.dumps(result), flush=True)


def texts_of(work: Path) -> list[str]:
    return sorted(file.stem for file in (work / "own").glob("*.txt"))


# -- the model before -------------------------------------------------------------------------------------------------


def prepare(given: argparse.Namespace) -> None:
    """Divide the texts, and make both models and their tokenizer."""
    work = given.work
    for place in ("first", "own", "test"):
        shutil.rmtree(work / place, ignore_errors=True)
        (work / place).mkdir()
    for file in sorted(given.texts.glob("*.txt")):
        text = file.read_text(encoding="utf-8")
        eighth, test = len(text) // 8, len(text) - len(text) // 80
        parts = {"first": text[: 2 * eighth], "own": text[2 * eighth : 3 * eighth], "test": text[test:]}
        for place, part in parts.items():
            (work / place / file.name).write_text(part, encoding="utf-8")
    tokenizer = trained_tokenizer(sorted((work / "first").glob("*.txt")))
    made = {"model": given.shape} | ({} if given.shape == "tiny" else {"large-model": "large"})
    for name, shape in made.items():
        write_model(work / name, SHAPES[shape], tokenizer)
    train_whole(work, given.first_steps)


def trained_tokenizer(files: list[Path]) -> Any:
    from tokenizers import ByteLevelBPETokenizer  # noqa: PLC0415 - an extra
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    trained = ByteLevelBPETokenizer()
    trained.train([str(file) for file in files], vocab_size=WORDS, special_tokens=["<eos>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<eos>")  # noqa: S106, SLF001


def write_model(place: Path, shape: dict[str, int], tokenizer: Any) -> None:
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    torch.manual_seed(SEED)
    LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=BLOCK, **shape)).save_pretrained(place)
    tokenizer.save_pretrained(place)


def train_whole(work: Path, steps: int) -> None:
    """Train the whole model on the first quarter of all texts, and write it back."""
    from p2pfl.adapt import transformers  # noqa: PLC0415

    task = transformers.task(work / "model", block=BLOCK)
    learner = learner_of(task, work, "first", steps, rate=FIRST_RATE, batch=2 * BATCH, optimizer="adamw")
    vector = trained_by(learner)
    learner.model.flat.load(vector)
    task.folders["merged"](learner.model.module, work / "trained")
    shutil.rmtree(work / "model")
    (work / "trained").rename(work / "model")


# -- learners in this process -----------------------------------------------------------------------------------------


def learner_of(task: Any, work: Path, path: str, steps: int, *, rate: float, batch: int, optimizer: str) -> Any:
    from p2pfl.config.model import Compute, TrainingConfig  # noqa: PLC0415
    from p2pfl.learn.task import NodeContext  # noqa: PLC0415
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415

    training = TrainingConfig(
        local_steps=steps, batch_size=batch, optimizer=optimizer, learning_rate=rate, keep_optimizer=True
    )
    context = NodeContext(node=0, nodes=1, name="one", seed=SEED, base_dir=work, local={"path": work / path})
    return TorchLearner(task, context, training, compute=Compute(precision=precision()))


def precision() -> str:
    """Return bf16 where the processor has instructions for it, else float32."""
    return "bf16" if re.search(r"\b(amx|avx512)_bf16\b", Path("/proc/cpuinfo").read_text()) else "float32"


def learner_at(work: Path, path: str, steps: int = 1, *, ffa: bool = False) -> Any:
    from p2pfl.adapt import transformers  # noqa: PLC0415

    task = transformers.lora(model="model", base_dir=work, rank=RANK, block=BLOCK, test_path="test", ffa=ffa)
    return learner_of(task, work, path, steps, rate=LORA_RATE, batch=BATCH, optimizer="adamw")


def trained_by(learner: Any) -> Any:
    from p2pfl.learn.interface import RoundStart  # noqa: PLC0415

    return learner.train(RoundStart(learner.initial()), 0).vector


def trained_at_one_place(work: Path, path: str, steps: int, name: str) -> Results:
    import numpy as np  # noqa: PLC0415

    learner = learner_at(work, path, steps)
    vector = trained_by(learner)
    np.save(work / f"{name}.npy", vector)
    return {"perplexity": perplexities(learner, vector, work), "steps": steps}


def perplexities(learner: Any, vector: Any, work: Path) -> dict[str, float]:
    """Return the perplexity of a model (d,) on each test text, and on all of them. None is the model before."""
    learner.model.flat.load(learner.initial() if vector is None else vector)
    return perplexities_of(learner.model.module, work)


def perplexities_of(module: Any, work: Path) -> dict[str, float]:
    import torch  # noqa: PLC0415

    from p2pfl.adapt.pretrained import Pretrained  # noqa: PLC0415
    from p2pfl.adapt.texts import blocks_of, texts_in  # noqa: PLC0415

    tokenizer, losses = Pretrained(folder=work / "model").tokenizer(), {}
    module.eval()
    for file in sorted((work / "test").glob("*.txt")):
        rows = torch.from_numpy(blocks_of(texts_in(file), tokenizer, BLOCK))
        with torch.no_grad():
            losses[file.stem] = torch.cat([module(part).double() for part in torch.split(rows, 32)])
    means = {name: float(found.mean()) for name, found in losses.items()}
    means["all"] = float(torch.cat([found.flatten() for found in losses.values()]).mean())
    return {name: math.exp(loss) for name, loss in means.items()}


def means_of(names: list[str], work: Path) -> Results:
    """Compare two means of adapters that were trained apart: of their halves, and of their products."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    learner = learner_at(work, "own")
    vectors = [np.load(work / f"{name}.npy") for name in names]
    own = [products(learner, vector) for vector in vectors]
    halves = np.mean(vectors, axis=0, dtype=np.float32)
    of_halves, of_products = products(learner, halves), {key: sum(one[key] for one in own) / len(own) for key in own[0]}
    gap = distance(of_halves, of_products) / distance(of_products, {})
    found = {"gap": gap, "of halves": perplexities(learner, halves, work)}
    with torch.no_grad():  # the product of the mean halves is taken away, and the mean of products put in its place
        layers = dict(learner.model.module.named_modules())
        for key, product in of_products.items():
            frozen = layers[key].base_layer
            frozen.weight = torch.nn.Parameter(frozen.weight + product - of_halves[key], requires_grad=False)
    return found | {"of products": perplexities_of(learner.model.module, work)}


def products(learner: Any, vector: Any) -> dict[str, Any]:
    """Return what adapters (d,) add to each layer's weights (out, in), by the layer's name."""
    learner.model.flat.load(vector)
    found = {}
    for name, layer in learner.model.module.named_modules():
        if hasattr(layer, "get_delta_weight") and layer.lora_A:
            found[name] = layer.get_delta_weight("default").detach().clone()
    return found


def distance(first: dict[str, Any], other: dict[str, Any]) -> float:
    return math.sqrt(sum(float((one - other.get(key, 0)).square().sum()) for key, one in first.items()))


# -- four processes ---------------------------------------------------------------------------------------------------


def federation(part: str, given: argparse.Namespace) -> Results:
    """Run one federation as processes, and return its nodes' figures."""
    work, place = given.work, given.work / f"federation-{part}"
    shutil.rmtree(place, ignore_errors=True)
    model = work / ("large-model" if part == "large" else "model")
    command = [sys.executable, "-m", "p2pfl", "new", str(place), "--task", "lora", "--base-port", str(free_port())]
    texts = work / ("test" if part == "large" else "own")  # at its end a node tests on its own text, too
    subprocess.run([*command, "--model", str(model), "--data", str(texts)], check=True, capture_output=True)
    changed(place / "federation.toml", part, given, model)
    for file in place.glob("*/node.toml"):
        file.write_text(file.read_text().replace('# precision = "float32"', f'precision = "{precision()}"'))
    command = [sys.executable, __file__, "--launch", str(place), str(model)]
    figures: Results = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    figures["parameters"] = file_values(model / "model.safetensors")
    if part != "large":
        from p2pfl.node.outcomes import read_learned  # noqa: PLC0415

        learned = [read_learned(place / name) for name in texts_of(work)]
        figures["perplexity"] = [perplexities(one.learner, one.vector, work) for one in learned]
        if part == "lora":
            figures["gap"] = gap_of(learned)
    return figures


def file_values(file: Path) -> int:
    from safetensors import safe_open  # noqa: PLC0415 - an extra

    with safe_open(file, "np") as opened:
        return sum(math.prod(opened.get_slice(key).get_shape()) for key in opened.keys())  # noqa: SIM118 - no mapping


def gap_of(learned: list[Any]) -> float:
    """Return how far the product of mean halves is from the mean of products, relative to its norm."""
    import numpy as np  # noqa: PLC0415

    own = [products(one.learner, one.vector) for one in learned]
    mean = {key: sum(one[key] for one in own) / len(own) for key in own[0]}
    halves = np.mean([one.vector for one in learned], axis=0, dtype=np.float32)
    return distance(products(learned[0].learner, halves), mean) / distance(mean, {})


def changed(file: Path, part: str, given: argparse.Namespace, model: Path) -> None:
    """Write this part's settings into a new federation file."""
    full = part == "full"
    settings = {
        "rounds": 1 if part == "large" else given.rounds,
        "local_steps": 1 if part == "large" else given.local_steps,
        "batch_size": BATCH,
        "learning_rate": FULL_RATE if full else LORA_RATE,
        "when_through": '"mix"',
        "keep_optimizer": "true",
        "evaluate_every": 0,
        "start_wait_s": 600.0,
        "rank": RANK,
        "block": BLOCK,
    } | ({"compressor": f'"{FULL_COMPRESSOR}"'} if full else {})
    text = file.read_text()
    for key, value in settings.items():
        text, times = re.subn(rf"(?m)^(?:# )?{key} = [^ \n]+", f"{key} = {value}", text)
        if times != 1:
            raise SystemExit(f"{file}: no line for {key}")
    if part != "large":
        text = text.replace(f"rank = {RANK}", f"rank = {RANK}\ntest_path = {json.dumps(str(given.work / 'test'))}")
    if part == "ffa":
        text = text.replace(f"rank = {RANK}", f"rank = {RANK}\nffa = true")
    if full:
        text = re.sub(r'(?s)name = "lora".*?\n\n', 'name = "whole.py:task"\n\n', text)
        made = f"transformers.task({str(model)!r}, block={BLOCK}, test={str(given.work / 'test')!r})"
        (file.parent / "whole.py").write_text(f"from p2pfl.adapt import transformers\n\ntask = {made}\n")
    file.write_text(text)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return 15_000 + int(taken.getsockname()[1]) % 15_000


def launch(place: Path, model: Path) -> Results:
    """Run the nodes of a federation, and look at their memory while all train."""
    from p2pfl.config.load import load_config  # noqa: PLC0415
    from p2pfl.fleet.fleet import Fleet  # noqa: PLC0415

    fleet = Fleet(load_config(place))
    memory: dict[str, list[dict[str, float]]] = {child.name: [] for child in fleet.children}
    weights = str((model / "model.safetensors").resolve())

    def look() -> None:
        died = [child.name for child in fleet.children if child.died]
        if died and not fleet.stopping:
            fleet.stop()
        phases = {"starting" if child.last is None else child.last.phase for child in fleet.children}
        if phases <= {"testing", "lingering", "finished"} and not fleet.stopping:
            fleet.stop()  # without the last test, also on the node's own text: models are tested here
        looks = [memory_of(child.process.pid, weights) for child in fleet.children if child.process is not None]
        if phases & {"testing", "lingering", "finished"} or len(looks) < len(memory):
            return
        if all(found.get("Rss of weights") for found in looks):
            for child, found in zip(fleet.children, looks, strict=True):
                memory[child.name].append(found)

    asyncio.run(fleet.run(look, LOOK_S))
    nodes = []
    for child in fleet.children:
        result = child.result()
        if result is None:
            raise SystemExit(f"{child.name} has no result: {child.log_path}")
        looks = memory[child.name]
        most = max(looks, key=lambda found: found["Rss"], default={})
        nodes.append(
            {
                "name": child.name,
                "rounds": result.rounds,
                "steps": result.steps,
                "exchanges": result.exchanges,
                "MB sent": result.bytes_sent / 1e6,
                "CPU-s": result.cpu_time_s,
                "CPU-s training": result.cpu_time_training_s,
                "wall s": result.wall_time_s,
                "memory": most,
                "looks": len(looks),
            }
        )
    return {"nodes": nodes}


def memory_of(pid: int, weights: str) -> dict[str, float]:
    """Return a process's memory in MB: of all, and of its mapping of the file of weights."""
    keys = ("Rss", "Pss", "Anonymous")
    found = {f"{key}{of}": 0.0 for of in ("", " of weights") for key in keys}
    inside = False
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    for line in lines:
        name, _, rest = line.partition(":")
        if name in keys:
            mb = int(rest.split()[0]) * 1.024e-3
            found[name] += mb
            found[f"{name} of weights"] += mb * inside
        elif re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(weights)
    return found


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(results: Results) -> str:
    """Return the tables of docs/how-to/adapters.md."""
    names = [name for name in results["before"]["perplexity"] if name != "all"]
    lines = [f"| | {' | '.join(names)} | all |", "|---|" + "---|" * (len(names) + 1)]
    for title, result in results.items():
        if "perplexity" in result and isinstance(result["perplexity"], dict):
            lines.append(row_of(title, [result["perplexity"]], names))
        elif "perplexity" in result:
            by_all = sorted(result["perplexity"], key=lambda found: found["all"])
            lines.append(row_of(f"{title}, mean of nodes", by_all, names))
            lines.append(row_of(f"{title}, worst node", by_all[-1:], names))
    lines += ["", json.dumps(results.get("means")), ""]
    keys = ("MB sent", "exchanges", "steps", "CPU-s", "CPU-s training", "wall s")
    lines += ["| | node | " + " | ".join(keys) + " | memory |", "|---|---|" + "---|" * (len(keys) + 1)]
    for title, result in results.items():
        for node in result.get("nodes", ()) if isinstance(result, dict) else ():
            memory = ", ".join(f"{key} {value:.0f}" for key, value in node["memory"].items())
            figures = " | ".join(f"{node[key]:.1f}" for key in keys)
            lines.append(f"| {title} | {node['name']} | {figures} | {memory} |")
    return "\n".join(lines)


def row_of(title: str, found: list[dict[str, float]], names: list[str]) -> str:
    means = [sum(one[name] for one in found) / len(found) for name in (*names, "all")]
    return f"| {title} | {' | '.join(f'{mean:.1f}' for mean in means)} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        print(json.dumps(launch(Path(sys.argv[2]), Path(sys.argv[3]))))
    else:
        main()
