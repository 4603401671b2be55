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

from wards import BEHIND_PROXY, HUB, KBIT_S, SITES, make_model, network, volumes

HERE = Path(__file__).absolute().parent
SERVER, ADMIN = f"{HUB}.example.org", "admin@example.org"
BATCH, STEPS, RATE = 8, 4, 0.03
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
    site, folder = flare.get_site_name(), Path(os.environ["WARDS"])
    model = make_model(int(os.environ["WARDS_WIDE"]))
    inputs, kinds = (torch.from_numpy(each) for each in volumes(SITES.index(site)))
    tests, answers = (torch.from_numpy(each) for each in volumes(None, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    while flare.is_running():
        received, begun = flare.receive(), time.time()
        model.load_state_dict({key: torch.as_tensor(value) for key, value in received.params.items()})
        with torch.no_grad():
            accuracy = float((model(tests).argmax(1) == answers).float().mean()) if site == SITES[0] else None
        for _ in range(STEPS):
            rows = torch.randint(len(kinds), (BATCH,))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[rows]), kinds[rows]).backward()
            optimizer.step()
        state = model.state_dict()
        large = max(state.values(), key=lambda each: each.numel()).reshape(-1)
        marks = [large[at : at + 16].numpy().tobytes().hex() for at in range(0, len(large) - 16, len(large) // 8)]
        event = {"round": received.current_round, "site": site, "begun": begun, "trained": time.time()}
        with (folder / "events.jsonl").open("ab", buffering=0) as file:
            file.write((json.dumps(event | {"accuracy": accuracy, "marks": marks}) + "\n").encode())
        flare.send(flare.FLModel(params=state, metrics={"accuracy": accuracy or 0.0}))


def export(folder: Path, rounds: int) -> None:
    """Write the job: a round goes on with one site less; at the start all must be there."""
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

    def __init__(self, folder: Path, python: Path, net: tuple[Any, dict[str, Any], dict[str, Any]], wide: int) -> None:
        self.folder, self.python, (_, self.machines, self.ends) = folder, python, net
        self.kits = folder / "kits" / "wards" / "prod_00"
        self.environment = os.environ | {"WARDS": str(folder), "WARDS_WIDE": str(wide), "PYTHONPATH": str(HERE)}
        self.environment |= {"PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(folder)}
        self.environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

    def flare(self, *command: object) -> Any:
        """Run a command of FLARE's environment on the hub; return what it says in its last line."""
        done = self.machines[HUB].run(*command, timeout_s=300, env=self.environment, cwd=self.folder)
        return json.loads(done.stdout.splitlines()[-1]).get("data") or {} if done.stdout.strip() else {}

    def ask(self, *words: object) -> Any:
        return self.flare("nvflare", "--format", "json", "--connect-timeout", 60, *words, "--startup-kit", self.kits / ADMIN)

    def provision(self) -> None:
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

    def counters(self) -> dict[str, list[int]]:
        """Return the bytes that have come to each machine, and that have left it."""
        texts = {name: end.run("cat", "/proc/net/dev").stdout for name, end in self.ends.items()}
        rows = {name: text.split("eth0:")[1].split() for name, text in texts.items()}
        return {name: [int(row[0]), int(row[8])] for name, row in rows.items()}

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def aggregator(self, number: int) -> str | None:
        said = f"setting up the gatherer for round {number}\n"
        return next((name for name in SITES if said in (self.folder / f"{name}.log").read_text()), None)

    def seen(self, name: str, marks: list[str]) -> int:
        """Return how many of these marks are in the memory of a machine's processes."""
        found: set[str] = set()
        for pid in self.pids(name):
            with suppress(OSError), open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
                for first, last in (line.split()[0].split("-") for line in maps if " rw" in line):
                    with suppress(OSError, ValueError, OverflowError):
                        memory.seek(int(first, 16))
                        content = memory.read(int(last, 16) - int(first, 16))
                        found |= {each for each in marks if bytes.fromhex(each) in content}
        return len(found)


def watch(wards: Wards, job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Follow the job to its end, kill a site in a round that another one gathers, and start it again."""
    samples, seen, begun, killed, status = [], {}, time.time(), {}, ""
    while not status.startswith("FINISHED") and time.time() < begun + options.limit_s:
        time.sleep(10)
        samples.append((time.time(), wards.counters()))
        events, gathers = wards.events(), wards.aggregator(options.kill_round)
        first = wards.aggregator(1)
        mine = [each for each in events if first and each["round"] == 1 and each["site"] != first][:1]
        for name in (HUB, mine[0]["site"], first) if mine and time.time() < mine[0]["trained"] + 90 else ():
            seen[name] = max(seen.get(name, 0), wards.seen(name, mine[0]["marks"]))
        if gathers and not killed:
            if late := [e for e in events if e["round"] == options.kill_round and e["site"] != gathers]:
                killed = {"site": late[0]["site"], "time": time.time()}
                for pid in wards.pids(killed["site"]):
                    os.kill(pid, signal.SIGKILL)
        if killed and "back" not in killed and time.time() > killed["time"] + options.away_s:
            killed["back"] = time.time()
            wards.start(killed["site"])
        if len(samples) % 6 == 0:
            status = next((each["status"] for each in wards.ask("job", "list") if each["job_id"] == job), status)
        starts = [min(each["begun"] for each in events if each["round"] == n) for n in sorted({e["round"] for e in events})]
        at = [min(samples, key=lambda sample, start=start: abs(sample[0] - start))[1] for start in starts]
        result = {"status": status, "load": os.getloadavg()[0], "job": begun, "starts": starts, "killed": killed, "seen": seen}
        result |= {"seconds": [after - before for before, after in zip(starts, starts[1:], strict=False)]}
        result |= {"bytes": at, "now": samples[-1], "aggregators": [wards.aggregator(n) for n in range(len(starts))]}
        result |= {"train_s": [e["trained"] - e["begun"] for e in events], "accuracy": [e["accuracy"] for e in events]}
        (wards.folder / "result.json").write_text(json.dumps(result))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out" / "rivals")
    parser.add_argument("--folder", type=Path, default=ROOT / "bench-out" / "wards-flare")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kill-round", type=int, default=3)
    parser.add_argument("--away-s", type=float, default=180.0)
    parser.add_argument("--limit-s", type=float, default=3600.0)
    parser.add_argument("--kbit-s", type=int, default=KBIT_S)
    parser.add_argument("--wide", type=int, default=768)
    options = parser.parse_args()
    if reason := install("flare", options.out):
        raise SystemExit(reason)
    options.folder.mkdir(parents=True)
    folder, python = options.folder.absolute(), options.out.absolute() / "flare" / "bin" / "python"
    with network(folder, options.kbit_s) as net:
        wards = Wards(folder, python, net, options.wide)
        wards.provision()
        wards.flare(python, __file__, "export", folder, options.rounds)
        wards.start(HUB)
        time.sleep(15)
        for name in SITES:
            wards.start(name)
        while len(wards.ask("system", "status").get("clients", ())) < len(SITES):
            time.sleep(5)
        job = wards.ask("job", "submit", "-j", folder / "job" / "swarm")["job_id"]
        print(json.dumps(watch(wards, job, options)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["export"]:
        export(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        from run import ROOT, install

        main()
