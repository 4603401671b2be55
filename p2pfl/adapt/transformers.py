"""Adapters (LoRA) of one causal language model, fine-tuned at each node on its own texts.

    task = transformers.task("tinyllama/", peft=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))

The model is a Hugging Face folder: config.json, a tokenizer, and weights as safetensors. Nothing is fetched, no other
format of weights is read, and no code of the folder runs. Only what is trained is part of the vector that nodes
exchange. The rest stays a mapping of the file, which all nodes of one machine share.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.adapt.extras import needed
from p2pfl.adapt.model_folder import TOKENIZERS, checked_folder
from p2pfl.adapt.texts import blocks_of, texts_in
from p2pfl.errors import UserError
from p2pfl.learn.metrics import Metric
from p2pfl.learn.task import NodeContext, Task

EXTRA = "transformers"
MOST_LOGITS = 1 << 25
"""The most logits that a test holds at once: 128 MiB."""
HELD_OUT = 10
"""Each node tests on the last of so many parts of its texts, unless there are texts to test on."""
SHORTEST = 2
"""The fewest tokens of a row: one to read, and one to predict."""


def task(
    model: Any, tokenizer: Any = None, *, peft: Any = None, block: int = 128, test: Path | str | None = None
) -> Task:
    """Make a task of a causal language model: a folder, or a model of transformers with its `tokenizer`.

    `peft` is the configuration of the adapters, such as a `LoraConfig`; without it the whole model is trained. A node's
    texts are at `path` in its `[data]`, a file or a folder of .txt files in UTF-8, cut into rows of `block` tokens. It
    tests on the texts at `test`, else on the last tenth of its own. Raises UserError: a package or a part of the model
    is missing, or the adapters match none of its modules.
    """
    needed("transformers", EXTRA, "transformers")
    if peft is not None:
        needed("peft", EXTRA, "peft")
    if isinstance(model, str | Path):
        found = Pretrained(folder=checked_folder(Path(model)))
    elif tokenizer is None:
        raise UserError("there is no tokenizer", key="tokenizer", allowed="that of the model")
    else:
        found = Pretrained(given=model, given_tokenizer=tokenizer)
    return found.task(peft, block, None if test is None else Path(test))


def lora(
    *,
    model: str,
    base_dir: Path,
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    modules: list[str] | None = None,
    block: int = 128,
    test_path: str = "",
) -> Task:
    """Make the task `lora` of a federation file. By default all linear layers but the last have adapters of `rank`."""
    needed("peft", EXTRA, "peft")
    from peft import LoraConfig  # noqa: PLC0415 - an extra

    if rank < 1:
        raise UserError("not a rank", key="task.rank", value=rank, allowed="a whole number from 1")
    if not 0 <= dropout < 1:
        raise UserError("not a share", key="task.dropout", value=dropout, allowed="from 0 to below 1")
    adapters = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=modules or "all-linear",
        task_type="CAUSAL_LM",
    )
    return task(base_dir / model, peft=adapters, block=block, test=base_dir / test_path if test_path else None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pretrained:
    """A pretrained model with its tokenizer: in a `folder`, or as objects."""

    folder: Path | None = None
    given: Any = None
    given_tokenizer: Any = None

    def task(self, peft: Any, block: int, test: Path | None) -> Task:
        base = self.base()
        refuse_unmatched(base, peft)
        refuse_block(block, getattr(base.config, "max_position_embeddings", None))
        words = getattr(base.config, "vocab_size", None)

        def rows_of(path: Path) -> Any:
            return blocks_of(texts_in(path), self.tokenizer(), block, words)

        def data(node: NodeContext) -> Any:
            node.check_local("path")
            rows = rows_of(node.path())
            held = max(1, len(rows) // HELD_OUT)
            tested = rows[-held:] if test is None else rows_of(test)
            own = rows[:-held] if test is None else rows
            return (own, own), (tested, tested)

        return Task(
            model=lambda: CausalLoss(self.adapted(peft)),
            data=data,
            loss=mean_loss,
            metrics={"perplexity": PERPLEXITY},
            metric="perplexity",
            name="lora" if peft is not None else "transformers",
            digest=b"" if self.folder is None else _digest(self.folder),
            files=lambda node: [node.path()] if node.path().is_file() else sorted(node.path().glob("*.txt")),
        )

    def base(self) -> Any:
        """Return the pretrained model, which is never trained itself."""
        return self.given if self.folder is None else _loaded(self.folder)

    def tokenizer(self) -> Any:
        return self.given_tokenizer if self.folder is None else _tokenizer(self.folder)

    def adapted(self, peft: Any) -> Any:
        """Return a model with new adapters around the same frozen weights, or a copy of it all without `peft`."""
        base = self.base()
        if peft is None:
            return copy.deepcopy(base).requires_grad_(requires_grad=True)
        from peft import get_peft_model  # noqa: PLC0415 - an extra

        shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # between peft and transformers: nothing that a user can mend
            return get_peft_model(copy.deepcopy(base, shared), copy.deepcopy(peft))


class CausalLoss(nn.Module):
    """A causal language model as a map from token ids (b, t) to the loss of each next token (b, t - 1).

    Its `state_dict` has only what is trained, so that the rest is neither exchanged nor saved.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor) -> Tensor:
        """Return the losses. A test takes a few rows at a time, because logits are as many as tokens times words."""
        if torch.is_grad_enabled():
            return self._losses(ids)
        rows = max(1, MOST_LOGITS // (ids.shape[1] * self.net.config.vocab_size))
        return torch.cat([self._losses(ids[row : row + rows]) for row in range(0, len(ids), rows)])

    def _losses(self, ids: Tensor) -> Tensor:
        logits = self.net(input_ids=ids, use_cache=False).logits[:, :-1].float()
        losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return losses.view(len(ids), -1)

    def state_dict(self, *_: Any, keep_vars: bool = False, **__: Any) -> dict[str, Tensor]:  # type: ignore[override]
        named = ((name, one) for name, one in self.named_parameters() if one.requires_grad)
        return {name: one if keep_vars else one.detach() for name, one in named}

    def load_state_dict(self, state_dict: Any, *_: Any, **__: Any) -> Any:
        """Load what `state_dict` returned. Raises RuntimeError: it belongs to other adapters."""
        own = self.state_dict(keep_vars=True)
        if own.keys() != state_dict.keys() or any(own[name].shape != one.shape for name, one in state_dict.items()):
            raise RuntimeError("these tensors belong to other adapters")
        with torch.no_grad():
            for name, one in own.items():
                one.copy_(state_dict[name])


def mean_loss(outputs: Tensor, _: Any) -> Tensor:
    """Return the mean of the losses (b, t - 1) of all tokens."""
    return outputs.mean()


def _perplexity(outputs: Tensor, _: Any) -> float:
    return float(outputs.double().mean().exp())


PERPLEXITY = Metric(compute=_perplexity, higher_is_better=False, label="perplexity")


def save(file: Path | str, model: Path | str, peft: Any, to: Path | str, *, merged: bool = False) -> Path:
    """Write a model `file` of `p2pfl export` as a folder that `peft` loads, or `merged` as one that transformers loads.

    `model` is the folder of the pretrained model, `peft` the configuration of its adapters. Raises UserError: the file
    is not of these adapters.
    """
    found = Pretrained(folder=checked_folder(Path(model)))
    made = CausalLoss(found.adapted(peft))
    try:
        made.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise UserError(f"cannot be loaded: {error}", file=file, allowed="a model of these adapters") from error
    if not merged:
        made.net.save_pretrained(to, save_embedding_layers=False)
        return Path(to)
    whole = copy.deepcopy(made.net).merge_and_unload()  # a copy: merging writes to the frozen weights
    whole.save_pretrained(to)
    found.tokenizer().save_pretrained(to)
    return Path(to)


def refuse_unmatched(model: Any, peft: Any) -> None:
    """Refuse adapters that match no module of the model. Raises UserError."""
    targets = getattr(peft, "target_modules", None)
    if not isinstance(targets, Iterable) or isinstance(targets, str):
        return
    linear = [name for name, one in model.named_modules() if hasattr(one, "weight") and one.weight.ndim > 1]
    lost = [one for one in targets if not any(name == one or name.endswith(f".{one}") for name in linear)]
    if lost:
        allowed = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        value = ", ".join(sorted(lost))
        raise UserError("the adapters match no module of the model", key="task.modules", value=value, allowed=allowed)


def refuse_block(block: int, longest: int | None) -> None:
    """Refuse rows that predict no token, or are longer than the model reads. Raises UserError."""
    if block < SHORTEST or block > (longest or block):
        allowed = f"{SHORTEST} to {longest}" if longest else f"from {SHORTEST}"
        raise UserError("not a number of tokens that the model reads", key="task.block", value=block, allowed=allowed)


@lru_cache(maxsize=2)
def _loaded(folder: Path) -> Any:
    """Load a model once for each process. Its weights stay mapped from the file.

    Raises UserError: it cannot be loaded, or the file lacks weights, which transformers would draw by chance.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - an extra
    from transformers.utils import logging  # noqa: PLC0415 - as above

    logging.disable_progress_bar()
    told, allowed = logging.get_verbosity(), "a causal language model of transformers"
    logging.set_verbosity(logging.CRITICAL)  # what matters is the error below
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype="auto",
            ignore_mismatched_sizes=True,  # to name them
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"the model {_reason(error)}", file=folder, key="model", allowed=allowed) from error
    finally:
        logging.set_verbosity(told)
    if lost := sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}):
        text, value = "the weights do not fit config.json: some are missing, or have another shape", ", ".join(lost[:3])
        raise UserError(text, file=folder, key="model", value=value, allowed=allowed)
    return model.requires_grad_(requires_grad=False)


def _reason(error: Exception) -> str:
    """Return why a part of a folder is not used, in one line."""
    said = " ".join(str(error).split())
    if "trust_remote_code" in said:
        return "needs code of its own, which is not run"
    return f"cannot be loaded: {said[:300]}"


@lru_cache(maxsize=2)
def _digest(folder: Path) -> bytes:
    """Return a digest of weights and tokenizer, because adapters of different models must not be mixed."""
    digest = xxhash.xxh3_128()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("token*"), folder / "config.json"]):
        with file.open("rb") as opened:
            while part := opened.read(1 << 20):
                digest.update(part)
    return hashlib.blake2b(digest.digest(), digest_size=32, person=b"p2pfl-weights").digest()


@lru_cache(maxsize=2)
def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - an extra

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"the tokenizer {_reason(error)}"
        raise UserError(text, file=folder, key="model", allowed=", ".join(TOKENIZERS)) from error
