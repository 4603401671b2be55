"""Audits find mistakes in the program that somebody has planted in its source, as a stranger would."""

from __future__ import annotations

import pytest
from planted import ROOT, plant, said_by

from p2pfl import Federation

NAMES = ("accounting", "gradients", "noise", "plan", "rounds")
ACCOUNTING, GRADIENTS, NOISE, PLAN, ROUNDS = (f"p2pfl/learn/privacy/{name}.py" for name in NAMES)

ROWS = "return np.flatnonzero(words < np.uint64(rate * 2.0**BITS))"
SUM = "factors, fine = factors_of(squares.sqrt(), clip)"
KEY = "    key = os.urandom(KEY_BYTES)\n"

PLANTED = {
    "fixed batches in place of Poisson": (
        NOISE,
        ROWS,
        "return np.sort(np.argsort(words)[: round(rate * samples)])",
        "size",
    ),
    "an accountant that counts half": (
        ACCOUNTING,
        "steps[noise, rate] = steps.get((noise, rate), 0) + count",
        "steps[noise, rate] = steps.get((noise, rate), 0) + (count + 1) // 2",
        "the budget pays for",
    ),
    "a ledger that counts every second round": (
        ACCOUNTING,
        "spend._replace(steps=last.steps + spend.steps)",
        "spend._replace(steps=last.steps + spend.steps // 2)",
        "the budget pays for",
    ),
    "a little less noise": (
        NOISE,
        "return noise * clip / UNIT",
        "return 0.95 * noise * clip / UNIT",
        "times the variance",
    ),
    "clipping off": (GRADIENTS, SUM, "factors, fine = torch.ones_like(squares), None", "clips"),
    "clipping each tensor by itself": (
        GRADIENTS,
        "            scaled = _only_finite(went, fine) * factors[:, None]",
        (
            "            own = _squares(went) * (_squares(came) + 1.0)\n"
            "            scaled = _only_finite(went, fine) * factors_of(own.sqrt(), clip)[0][:, None]"
        ),
        "clips",
    ),
    "more rows than are paid for": (
        NOISE,
        ROWS,
        "return np.flatnonzero(words < np.uint64(min(1.0, 1.3 * rate) * 2.0**BITS))",
        "times the rows",
    ),
    "noise once a round": (
        NOISE,
        "        noisy += draws.noise(total.size)\n",
        "        noisy += draws.noise(total.size) if not hasattr(draws, 'spoken') else 0\n        draws.spoken = True\n",
        "times the variance",
    ),
    "the same noise for all tensors": (
        NOISE,
        "return gaussians(size, _secret)",
        "return np.resize(gaussians((size + 1) // 2, _secret), size)",
        "repeats itself",
    ),
    "a mean over those that came": (
        GRADIENTS,
        "hidden = torch.from_numpy(grid.hidden(total, self._draws) / expected)",
        "hidden = torch.from_numpy(grid.hidden(total, self._draws) / max(1, len(rows)))",
        "counts",
    ),
    "float noise on a float sum": (
        NOISE,
        "        noisy = np.rint(total / self.step)\n        noisy += draws.noise(total.size)\n        noisy *= self.step\n",
        (
            "        noise = (draws.noise(total.size) * self.step).astype(np.float32)\n"
            "        noisy = (total.astype(np.float32) + noise).astype(np.float64)\n"
        ),
        "last bits",
    ),
    "a member's change that is not cut": (
        ROUNDS,
        "if length > most else change",
        "if length > 1000 * most else change",
        "clips",
    ),
}
BY_A_STRANGER = {
    "all steps of a round take the same rows": (
        GRADIENTS,
        "[torch.from_numpy(draws.rows(samples, self._spend.rate)) for _ in range(self._spend.steps)]",
        "[torch.from_numpy(draws.rows(samples, self._spend.rate))] * self._spend.steps",
        "take the same rows",
    ),
    "a bias that is not in the length": (
        GRADIENTS,
        "squares = squares + _squares(went) * (reach if bias is None else reach + 1.0)",
        "squares = squares + _squares(went) * reach",
        "clips",
    ),
    "one small number in place of four": (
        "p2pfl/learn/privacy/noise.py",
        (
            "        block[:] = _small(len(block), draw)\n        for _ in range(LEVELS - 1):\n"
            "            block *= FACTOR\n            block += _small(len(block), draw)\n"
        ),
        (
            "        small = _small(len(block), draw)\n        block[:] = small\n        for _ in range(LEVELS - 1):\n"
            "            block *= FACTOR\n            block += small\n"
        ),
        "few values",
    ),
    "a member's round that failed has no noise": (
        ROUNDS,
        "    change = _clipped(ended.astype(np.float64) - start, grid.length)\n    return",
        "    change = _clipped(ended - start, 1.0)\n    return start.copy() if not np.isfinite(ended).all() else",
        "without a finite loss",
    ),
    "cheaper rounds change the price of those before": (
        ACCOUNTING,
        "if (last.noise, last.rate) == (spend.noise, spend.rate):",
        "if last.noise == spend.noise:",
        "dearer steps",
    ),
}
"""By somebody who had read the mechanism and not the audit. The last three were not found by it, then."""
IN_REAL_NODES = {
    "noise repeated by a process that starts again": (
        NOISE,
        KEY,
        (
            "    global _asked\n    _asked = globals().get('_asked', 0) + 1\n"
            "    key = _asked.to_bytes(KEY_BYTES, 'little')\n"
        ),
        "same chance",
    ),
    "nodes that draw from the seed": (
        PLAN,
        "chance=chance or Secret()",
        "chance=chance or __import__('p2pfl.learn.privacy.noise', fromlist=['Seeded']).Seeded(federation.seed)",
        "same chance",
    ),
    "rounds that are not paid for": (
        "p2pfl/learn/privacy/accounting.py",
        "        *before, last = self.spent or (spend._replace(steps=0),)\n",
        (
            "        if self.spent:\n            return self\n"
            "        *before, last = self.spent or (spend._replace(steps=0),)\n"
        ),
        "ledger has",
    ),
}


ALL = PLANTED | BY_A_STRANGER | IN_REAL_NODES


@pytest.mark.parametrize("mistake", ALL)
def test_each_mistake_has_its_place(mistake):
    file, right, *_ = ALL[mistake]
    assert (ROOT / file).read_text(encoding="utf-8").count(right) == 1


@pytest.fixture(scope="module")
def ward(tmp_path_factory):
    how = {"rounds": 2, "local_steps": 4, "options": {"hidden": 16}}
    privacy = {"epsilon": 8, "delta": 1e-4, "accountant": "rdp"}
    return Federation(task="digits", nodes=3, privacy=privacy, **how).save(tmp_path_factory.mktemp("w") / "ward")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mistake", PLANTED | BY_A_STRANGER)
def test_a_mistake_in_the_steps_is_found(tmp_path, ward, mistake):
    *where, said = (PLANTED | BY_A_STRANGER)[mistake]
    found = said_by(plant(tmp_path / "code", *where), "mechanism_kit.py", ward)

    assert said in found.stderr, found.stderr
    assert found.returncode == 1


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", IN_REAL_NODES)
def test_a_mistake_that_only_a_restarted_process_shows_is_found(tmp_path, mistake):
    *where, said = IN_REAL_NODES[mistake]
    found = said_by(plant(tmp_path / "code", *where), "killed_nodes.py", timeout_s=500)

    assert said in found.stderr, found.stderr
    assert found.returncode == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_program_without_a_mistake_passes(ward):
    for kit, *arguments in (("mechanism_kit.py", ward), ("killed_nodes.py",)):
        found = said_by(ROOT, kit, *arguments, timeout_s=500)
        assert (found.returncode, found.stderr) == (0, "")
