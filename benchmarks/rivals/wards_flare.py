"""NVIDIA FLARE's swarm learning for the wards in a box: provisioned, its server on the hub, a client in each site.

A round takes 2.0 minutes (3.9 with float32); each byte goes through the server, encrypted for the peer. Streams of the
default window, 64 MB, were sent again after 5 s until they failed. `https_proxy` leads gRPC out of site5. A killed site
comes back, but not into the job: its round waits for it, then goes on; the next cannot reach it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from wards import BEHIND_PROXY, HUB, KEYS, ROOT, SITES, make_model, network, traffic, volumes

SERVER, ADMIN, LEAST = f"{HUB}.example.org", "admin@example.org", len(SITES) - 1
ROUNDS, KILL, AWAY_S, NVFLARE = 6, 2, 120, ("nvflare", "--format", "json")
MESSAGES = {"streaming_read_timeout": 3000, "streaming_ack_wait": 6000, "streaming_ack_progress_timeout": 600}
MESSAGES |= {"streaming_chunk_size": 512 << 10, "streaming_window_size": 2 << 20, "streaming_ack_interval": 512 << 10}
MESSAGES |= {"streaming_retry_wait": 60.0, "streaming_retry_timeout": 1200.0}
WAITS = {"wait_time_after_min_resps_received": 300.0, "request_to_submit_result_msg_timeout": 60.0}
WAITS |= {"learn_task_ack_timeout": 1200, "final_result_ack_timeout": 1200, "learn_task_timeout": 2400.0}
BUILDERS: dict[str, dict[str, Any]] = {"workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]}}
BUILDERS |= {"static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"}}
BUILDERS |= {"cert.CertBuilder": {}, "signature.SignatureBuilder": {}}


def client() -> None:
    """Train a site's model: what FLARE runs in each client."""
    import nvflare.client as flare  # noqa: PLC0415 - they are in FLARE's environment alone
    import torch  # noqa: PLC0415

    flare.init()
    site, model = flare.get_site_name(), make_model()
    inputs, kinds, tests, answers = map(torch.from_numpy, (*volumes(SITES.index(site)), *volumes(None, 128)))
    optimizer = torch.optim.SGD(model.parameters(), lr=KEYS["learning_rate"])
    while flare.is_running():
        received, begun = flare.receive(), time.time()
        model.float().load_state_dict({key: torch.as_tensor(value) for key, value in received.params.items()})
        accuracy = float((model(tests).argmax(1) == answers).float().mean())
        for _ in range(KEYS["local_steps"]):
            rows = torch.randint(len(kinds), (KEYS["batch_size"],))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[rows]), kinds[rows]).backward()
            optimizer.step()
        event = {"round": received.current_round, "site": site, "begun": begun, "accuracy": accuracy}
        with Path(os.environ["WARDS"], "events.jsonl").open("ab", buffering=0) as file:
            file.write((json.dumps(event) + "\n").encode())
        flare.send(flare.FLModel(params=model.half().state_dict(), metrics={"accuracy": accuracy}))


def export() -> None:
    """Write the job here: at the start all sites must be there, and later rounds go on with one less."""
    from nvflare.app_opt.pt.recipes.swarm import SwarmLearningRecipe  # noqa: PLC0415
    from nvflare.client.config import ExchangeFormat  # noqa: PLC0415

    Path("client.py").write_text("from wards_flare import client\n\nclient()\n", encoding="utf-8")
    options = {"memory_gc_rounds": 0, "max_concurrent_submissions": 8, "aggregation_format": ExchangeFormat.PYTORCH}
    options |= {"max_status_report_interval": 1200, "start_task_timeout": 1200, "key_metric": None}
    options |= {"model": {"class_path": "wards.make_model", "args": {}}, "client_config_overrides": WAITS}
    options |= {"name": "swarm", "num_rounds": ROUNDS, "train_script": "client.py", "min_clients": LEAST}
    recipe = SwarmLearningRecipe(**options)
    recipe.add_client_config({"tensor_download_chunk_size": 8 << 20, "tensor_min_download_timeout": 1200})
    recipe.export(".")
    config = Path("swarm/app/config/config_fed_server.json")
    config.write_text(config.read_text().replace(f'"min_clients": {LEAST}', '"min_clients": 0'))


class Wards:
    """The machines and their FLARE, in a folder."""

    def __init__(self, folder: Path, programs: Path, machines: dict[str, Any]) -> None:
        self.folder, self.machines, self.kits = folder, machines, folder / "kits" / "wards" / "prod_00"
        self.environment = os.environ | {"WARDS": str(folder), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        self.environment |= {"PYTHONPATH": str(Path(__file__).parent), "PATH": f"{programs}:{os.environ['PATH']}"}
        self.environment["NVFLARE_STARTUP_KIT_DIR"] = str(self.kits / ADMIN)

    def call(self, *words: object) -> Any:
        """Run a command of FLARE's environment on the hub; return what its last line says, if that is JSON."""
        done = self.machines[HUB].run(*words, timeout_s=300, env=self.environment, cwd=self.folder)
        return json.loads((done.stdout.strip() or "{}").splitlines()[-1]).get("data") or {}

    def provision(self) -> None:
        kinds = {SERVER: {"type": "server", "fed_learn_port": 443}} | {name: {"type": "client"} for name in SITES}
        kinds |= {ADMIN: {"type": "admin", "role": "project_admin"}}
        builders = [{"path": f"nvflare.lighter.impl.{name}", "args": args} for name, args in BUILDERS.items()]
        people = [{"name": name, "org": "wards"} | kind for name, kind in kinds.items()]
        project = {"api_version": 3, "name": "wards", "participants": people, "builders": builders}
        (self.folder / "project.yml").write_text(json.dumps(project))
        self.call(*NVFLARE, "provision", "-p", "project.yml", "-w", "kits", "--force")
        for name in (SERVER, *SITES):
            (self.kits / name / "local" / "comm_config.json").write_text(json.dumps(MESSAGES))
        store = self.kits / SERVER / "local" / "resources.json.default"
        store.write_text(store.read_text().replace("/tmp/nvflare", str(self.folder)))  # noqa: S108 - their default
        self.call("python", "-c", "import wards_flare; wards_flare.export()")

    def start(self, name: str) -> None:
        env = self.environment | ({"https_proxy": "http://proxy.example.org:3128"} if name == BEHIND_PROXY else {})
        kit = self.kits / (SERVER if name == HUB else name)
        (kit / "daemon_pid.fl").unlink(missing_ok=True)  # the killed one is there until this process waits for it
        with (self.folder / f"{name}.log").open("ab") as log:
            self.machines[name].start("bash", kit / "startup" / "sub_start.sh", env=env, stdout=log, stderr=log)

    def watch(self, ends: dict[str, Any]) -> None:
        """Run the job to its end; kill a site that has trained in a round it does not gather, and start it again."""
        self.call(*NVFLARE, "job", "submit", "-j", "swarm")
        began, status, killed, path = time.time(), "", {}, self.folder / "events.jsonl"
        while not status.startswith("FINISHED"):
            time.sleep(10)
            events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            trained = {each["site"] for each in events if each["round"] == KILL}
            late = [n for n in trained if f"gatherer for round {KILL}\n" not in (self.folder / f"{n}.log").read_text()]
            if late and not killed:
                killed = {"site": late[0], "s": time.time() - began}
                self.call("sh", "-c", f"kill -9 $(ip netns pids {self.machines[late[0]].namespace})")
                time.sleep(AWAY_S)
                self.start(late[0])
            status = next((job["status"] for job in self.call(*NVFLARE, "job", "list")), status)
            starts = [min(each["begun"] for each in events if each["round"] == n) for n in {e["round"] for e in events}]
            sites: dict[str, Any] = {name: traffic(end) for name, end in ends.items()}
            for each in events:
                sites[each["site"]] |= {"rounds": each["round"] + 1, "accuracy": each["accuracy"]}
            figures = {"status": status, "minutes": (time.time() - began) / 60, "minutes_a_round": np.diff(starts) / 60}
            figures |= {"killed": killed, "hub_mb": sites.pop(HUB)["in_mb"], "load": os.getloadavg(), "sites": sites}
            (self.folder / "figures.json").write_text(json.dumps(figures, indent=1, default=list) + "\n")
        print(json.dumps(figures, indent=1, default=list))


def main() -> None:
    from run import install  # noqa: PLC0415 - FLARE's environment has no need of it

    out = ROOT / "bench-out"
    if reason := install("flare", out / "rivals"):
        raise SystemExit(reason)
    (out / "wards-flare").mkdir()
    with network(out / "wards-flare") as (_, machines, ends):
        wards = Wards(out / "wards-flare", out / "rivals" / "flare" / "bin", machines)
        wards.provision()
        for name in (HUB, *SITES):
            wards.start(name)
        while len(wards.call(*NVFLARE, "system", "status").get("clients", ())) < len(SITES):
            time.sleep(5)
        wards.watch(ends)


if __name__ == "__main__":
    main()
