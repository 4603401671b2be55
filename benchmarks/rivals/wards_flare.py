"""NVIDIA FLARE's swarm learning for the wards in a box: provisioned, its server on the hub, a client in each site."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from wards import BATCH, BEHIND_PROXY, HUB, KBIT_S, RATE, ROOT, SITES, STEPS, WIDE, make_model, network, traffic, volumes

HERE, SERVER, ADMIN = Path(__file__).absolute().parent, f"{HUB}.example.org", "admin@example.org"
STREAMS = {"tensor_download_chunk_size": 8 << 20, "tensor_min_download_timeout": 1200}
MESSAGES = {"streaming_read_timeout": 3000, "streaming_ack_wait": 6000, "streaming_ack_progress_timeout": 600}
WAITS = {"wait_time_after_min_resps_received": 300.0, "request_to_submit_result_msg_timeout": 60.0}
WAITS |= {"learn_task_ack_timeout": 1200, "final_result_ack_timeout": 1200, "learn_task_timeout": 2400.0}
BUILDERS: dict[str, dict[str, Any]] = {"workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]}}
BUILDERS |= {"static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"}}
BUILDERS |= {"cert.CertBuilder": {}, "signature.SignatureBuilder": {}}


def client() -> None:
    """Train a site's model: what FLARE runs in each client."""
    import nvflare.client as flare  # noqa: PLC0415 - they are in FLARE's environment alone
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    flare.init()
    site, model = flare.get_site_name(), make_model(int(os.environ["WARDS_WIDE"]))
    inputs, kinds = (torch.from_numpy(each) for each in volumes(SITES.index(site)))
    tests, answers = (torch.from_numpy(each) for each in volumes(None, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    while flare.is_running():
        received, begun = flare.receive(), time.time()
        model.load_state_dict({key: torch.as_tensor(value) for key, value in received.params.items()})
        with torch.no_grad():
            accuracy = float((model(tests).argmax(1) == answers).float().mean())
        for _ in range(STEPS):
            rows = torch.randint(len(kinds), (BATCH,))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[rows]), kinds[rows]).backward()
            optimizer.step()
        state = model.state_dict()
        large = max(state.values(), key=lambda each: each.numel()).reshape(-1)
        marks = [large[at : at + 16].numpy().tobytes().hex() for at in range(0, len(large) - 16, len(large) // 8)]
        event = {"round": received.current_round, "site": site, "begun": begun, "trained": time.time(), "marks": marks}
        with Path(os.environ["WARDS"], "events.jsonl").open("ab", buffering=0) as file:
            file.write((json.dumps(event | {"accuracy": accuracy}) + "\n").encode())
        flare.send(flare.FLModel(params=state, metrics={"accuracy": accuracy}))


def export(folder: Path, rounds: int) -> None:
    """Write the job: at the start all sites must be there, and later rounds go on with one less."""
    from nvflare.app_opt.pt.recipes.swarm import SwarmLearningRecipe  # noqa: PLC0415
    from nvflare.client.config import ExchangeFormat  # noqa: PLC0415

    (folder / "client.py").write_text("from wards_flare import client\n\nclient()\n", encoding="utf-8")
    os.chdir(folder)
    options = {"memory_gc_rounds": 0, "max_concurrent_submissions": 8, "aggregation_format": ExchangeFormat.PYTORCH}
    options |= {"max_status_report_interval": 1200, "start_task_timeout": 1200, "key_metric": None}
    options |= {"model": {"class_path": "wards.make_model", "args": {"wide": int(os.environ["WARDS_WIDE"])}}}
    options |= {"name": "swarm", "num_rounds": rounds, "train_script": "client.py", "min_clients": len(SITES) - 1}
    recipe = SwarmLearningRecipe(client_config_overrides=WAITS, **options)
    recipe.add_client_config(STREAMS)
    recipe.export(str(folder / "job"))
    config = folder / "job" / "swarm" / "app" / "config" / "config_fed_server.json"
    config.write_text(config.read_text().replace(f'"min_clients": {len(SITES) - 1}', '"min_clients": 0'))


class Wards:
    """The machines and their FLARE."""

    def __init__(self, folder: Path, python: Path, machines: dict[str, Any], wide: int) -> None:
        self.folder, self.python, self.machines = folder, python, machines
        self.kits = folder / "kits" / "wards" / "prod_00"
        self.environment = os.environ | {"WARDS": str(folder), "WARDS_WIDE": str(wide), "PYTHONPATH": str(HERE)}
        self.environment |= {"PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(folder)}
        self.environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

    def flare(self, *words: object) -> Any:
        """Run a command of FLARE's environment on the hub; return what it says in its last line."""
        done = self.machines[HUB].run(*words, timeout_s=300, env=self.environment, cwd=self.folder)
        return json.loads(done.stdout.splitlines()[-1]).get("data") or {} if done.stdout.strip() else {}

    def ask(self, *words: object) -> Any:
        kit = ("--startup-kit", self.kits / ADMIN)
        return self.flare("nvflare", "--format", "json", "--connect-timeout", 60, *words, *kit)

    def provision(self, rounds: int) -> None:
        people: list[dict[str, Any]] = [{"name": SERVER, "type": "server", "org": "wards", "fed_learn_port": 443}]
        people += [{"name": name, "type": "client", "org": "wards"} for name in SITES]
        people += [{"name": ADMIN, "type": "admin", "org": "wards", "role": "project_admin"}]
        builders = [{"path": f"nvflare.lighter.impl.{name}", "args": args} for name, args in BUILDERS.items()]
        project = {"api_version": 3, "name": "wards", "participants": people, "builders": builders}
        (self.folder / "project.yml").write_text(json.dumps(project))
        self.flare("nvflare", "--format", "json", "provision", "-p", "project.yml", "-w", "kits", "--force")
        for name in (SERVER, *SITES):
            (self.kits / name / "local" / "comm_config.json").write_text(json.dumps(MESSAGES))
        store = self.kits / SERVER / "local" / "resources.json.default"
        store.write_text(store.read_text().replace("/tmp/nvflare", str(self.folder)))  # noqa: S108 - their default
        self.flare(self.python, __file__, "export", self.folder, rounds)

    def start(self, name: str) -> None:
        """Start a machine's part of FLARE: what its start.sh starts."""
        proxy = {"https_proxy": "http://proxy.example.org:3128"} if name == BEHIND_PROXY else {}
        kit = self.kits / (SERVER if name == HUB else name)
        with (self.folder / f"{name}.log").open("ab") as log:
            options = {"env": self.environment | proxy, "cwd": kit, "stdout": log, "stderr": log}
            self.machines[name].start("bash", kit / "startup" / "sub_start.sh", **options)

    def pids(self, name: str) -> list[int]:
        done = self.machines[HUB].run("ip", "netns", "pids", self.machines[name].namespace)
        return [int(each) for each in done.stdout.split()]

    def aggregator(self, number: int) -> str | None:
        said = f"setting up the gatherer for round {number}\n"
        return next((name for name in SITES if said in (self.folder / f"{name}.log").read_text()), None)

    def seen(self, name: str, marks: list[str]) -> int:
        """Return how many of these parts of a model are in the memory of a machine's processes."""
        found: set[str] = set()
        for pid in self.pids(name):
            with suppress(OSError), open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
                for first, last in (line.split()[0].split("-") for line in maps if " rw" in line):
                    with suppress(OSError, ValueError, OverflowError):
                        memory.seek(int(first, 16))
                        content = memory.read(int(last, 16) - int(first, 16))
                        found |= {each for each in marks if bytes.fromhex(each) in content}
        return len(found)


def watch(wards: Wards, ends: dict[str, Any], job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Follow the job to its end; kill a site that does not gather, and start it again."""
    samples, seen, killed, status, began, told = [], {}, {}, "", time.time(), {}
    while not status.startswith("FINISHED") and time.time() < began + options.limit_s:
        time.sleep(10)
        samples.append((time.time(), {name: traffic(end) for name, end in ends.items()}))
        path, first, gathers = wards.folder / "events.jsonl", wards.aggregator(1), wards.aggregator(options.kill_round)
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        sent = [each for each in events if first and each["round"] == 1 and each["site"] != first][:1]
        for name in (HUB, sent[0]["site"], first) if sent and time.time() < sent[0]["trained"] + 90 else ():
            seen[name] = max(seen.get(name, 0), wards.seen(name, sent[0]["marks"]))
        late = [e["site"] for e in events if gathers and e["round"] == options.kill_round and e["site"] != gathers]
        if late and not killed:
            killed = {"site": late[0], "s": time.time() - began}
            for pid in wards.pids(late[0]):
                os.kill(pid, signal.SIGKILL)
        if killed and "back_s" not in killed and time.time() - began > killed["s"] + options.away_s:
            killed["back_s"] = time.time() - began
            wards.start(killed["site"])
        if len(samples) % 6 == 0:
            status = next((each["status"] for each in wards.ask("job", "list") if each["job_id"] == job), status)
        rounds = sorted({each["round"] for each in events})
        starts = [min(each["begun"] for each in events if each["round"] == number) for number in rounds]
        moved = [min(samples, key=lambda sample, at=at: abs(sample[0] - at))[1] for at in starts] + [samples[-1][1]]
        told = {"status": status, "load": os.getloadavg()[0], "killed": killed, "seen": seen, "minutes": (time.time() - began) / 60}
        told |= {"seconds": np.diff(starts).tolist(), "gathers": [wards.aggregator(number) for number in rounds], "moved": moved}
        told |= {"last_begun_s": [max(e["begun"] for e in events if e["round"] == n) - at for n, at in zip(rounds, starts)]}
        told |= {"train_s": [round(each["trained"] - each["begun"], 1) for each in events]}
        told |= {"accuracy": {each["site"]: each["accuracy"] for each in events}}
        told |= {"rounds": {name: sum(each["site"] == name for each in events) for name in SITES}}
        (wards.folder / "figures.json").write_text(json.dumps(told) + "\n")
    return told


def main() -> None:
    from run import install  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out" / "rivals", help="where FLARE's environment is")
    parser.add_argument("--work", type=Path, default=ROOT / "bench-out" / "wards-flare", help="a new or empty folder")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kill-round", type=int, default=3)
    parser.add_argument("--away-s", type=float, default=180.0)
    parser.add_argument("--limit-s", type=float, default=3600.0)
    parser.add_argument("--kbit-s", type=int, default=KBIT_S)
    parser.add_argument("--wide", type=int, default=WIDE)
    options = parser.parse_args()
    if reason := install("flare", options.out):
        raise SystemExit(reason)
    folder = options.work.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with network(folder, options.kbit_s) as (_, machines, ends):
        wards = Wards(folder, options.out.absolute() / "flare" / "bin" / "python", machines, options.wide)
        wards.provision(options.rounds)
        wards.start(HUB)
        time.sleep(15)
        for name in SITES:
            wards.start(name)
        while len(wards.ask("system", "status").get("clients", ())) < len(SITES):
            time.sleep(5)
        print(json.dumps(watch(wards, ends, wards.ask("job", "submit", "-j", folder / "job" / "swarm")["job_id"], options)))


if __name__ == "__main__":
    export(Path(sys.argv[2]), int(sys.argv[3])) if sys.argv[1:2] == ["export"] else main()
