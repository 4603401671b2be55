"""`python sweep_script.py FILE OUT COUNT`: one line on stdout for each change, exit code as the command."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import faces  # noqa: F401
import fake_jobs

from sim import load_sweep, run_here, run_sweep
from sim.sweeps import job as jobs


def say(standing):
    sys.stdout.write(f"{standing.done} {standing.failed}\n")
    sys.stdout.flush()


def main():
    file, out, count = sys.argv[1:]
    jobs.software = lambda: fake_jobs.SOFTWARE
    sweep = run_sweep(
        load_sweep(Path(file)),
        Path(out),
        run_job=fake_jobs.run,
        check=fake_jobs.check,
        runner=partial(run_here, count=int(count)),
        on_change=say,
    )
    sys.exit(130 if sweep.interrupted else 1 if sweep.standing.failed else 0)


if __name__ == "__main__":
    main()
