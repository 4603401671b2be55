"""Adapters (LoRA) of one causal language model, fine-tuned at each node on its own texts.

    task = transformers.task("tinyllama/", peft=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))

The model is a Hugging Face folder: config.json, a tokenizer, and weights as safetensors. Nothing is fetched, no other
format of weights is read, and no code of the folder runs. Only what is trained is part of the vector that nodes
exchange. The rest stays a mapping of the file, which all nodes of one machine share.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.adapt.client import needed
from p2pfl.errors import UserError
from p2pfl.foreign import read_file
from p2pfl.learn.metrics import Metric
from p2pfl.learn.task import NodeContext, Task

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def checked_folder(folder: Path) -> Path:
    """Return the absolute path of a model's folder. Raises UserError: a part of it is missing."""
    allowed = "a Hugging Face folder with config.json, a tokenizer and *.safetensors"
    if not folder.is_dir():
        text = "is not a folder" if folder.exists() else "there is no such folder"
        raise UserError(text, file=folder, key="model", allowed=allowed)
    if not (folder / "config.json").is_file():
        raise UserError("there is no model: config.json is missing", file=folder, key="model", allowed=allowed)
    if not any(folder.glob("*.safetensors")):
        text = "there are no weights as safetensors, and others are not read"
        raise UserError(text, file=folder, key="model", allowed=allowed)
    if (folder / "adapter_config.json").exists():
        text = "the folder has adapters of its own, which are not read"
        raise UserError(text, file=folder, key="model", allowed="the model without them, or merged with them")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError("there is no tokenizer", file=folder, key="model", allowed=", ".join(TOKENIZERS))
    return folder.absolute()


def adapter_values(folder: Path, rank: int) -> int:
    """Estimate how many values adapters of all linear layers but the last have, by the shapes in a model's files."""
    values = 0
    for file in folder.glob("*.safetensors"):
        with suppress(SafetensorError), safe_open(file, "np") as weights:
            names = [name for name in weights.keys() if not re.search("embed|wte|wpe|lm_head", name)]  # noqa: SIM118
            shapes = [weights.get_slice(name).get_shape() for name in names]
            values += rank * sum(sum(shape) for shape in shapes if len(shape) == 2)
    return values


FEWEST = 2
"""A node needs a row to train on and one to test on."""


def texts_in(path: Path) -> list[tuple[Path, str]]:
    """Return the texts of a file, or of the .txt files of a folder in the order of their names.

    Raises UserError: there is none, or one is empty or not UTF-8.
    """
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise UserError("the folder has no text", file=path, allowed="*.txt files in UTF-8")
    return [(file, _text(file)) for file in files]


def _text(file: Path) -> str:
    try:
        text = read_file(file, allowed="a text file").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("is not UTF-8", file=file, value=f"byte {error.start}", allowed="text in UTF-8") from None
    if not text.strip():
        raise UserError("is empty", file=file, allowed="some text")
    return text


def blocks_of(texts: list[tuple[Path, str]], tokenizer: Any, block: int, words: int | None = None) -> NDArray[np.int64]:
    """Return the tokens of all texts as rows (n, block); each text ends with the end-of-text token, if there is one.

    The last tokens that fill no row are left out. Raises UserError: there are too few, or one is not among the `words`
    that a model knows.
    """
    ids: list[int] = []
    for _, text in texts:
        ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if tokenizer.eos_token_id is not None:
            ids.append(tokenizer.eos_token_id)
    if words is not None and ids and (most := max(ids)) >= words:
        raise UserError(
            "the tokenizer has words that the model lacks", key="model", value=most, allowed=f"ids below {words}"
        )
    rows = len(ids) // block
    if rows < FEWEST:
        place, allowed = texts[0][0], f"at least {FEWEST * block}: more text, or a smaller task.block"
        raise UserError("has too few tokens", file=place, value=len(ids), allowed=allowed)
    return np.array(ids[: rows * block], np.int64).reshape(rows, block)


@lru_cache(maxsize=2)
def _loaded(folder: Path) -> Any:
    """Load a model once for each process. Its weights stay mapped from the file.

    Raises UserError: it cannot be loaded, or the file lacks weights, which transformers would draw by chance.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - an extra
    from transformers.utils import logging  # noqa: PLC0415 - as above

    logging.disable_progress_bar()
    verbosity, allowed = logging.get_verbosity(), "a causal language model of transformers"
    logging.set_verbosity(logging.CRITICAL)  # what matters is the error below
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
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
        logging.set_verbosity(verbosity)
    if lost := sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}):
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


EXTRA = "transformers"
MOST_LOGITS = 1 << 23
"""The most logits that a test computes at once: 32 MiB."""
HELD_OUT = 10
"""Each node tests on the last of so many parts of its texts, unless there are texts to test on."""
LOCAL = ("base_model_name_or_path", "inference_mode", "lora_dropout", "peft_version", "revision")
"""Keys of a configuration of peft that may differ between nodes."""
SHORTEST = 2
"""The fewest tokens of a row: one to read, and one to predict."""


def task(
    model: Path | str,
    *,
    peft: Any = None,
    block: int = 128,
    test: Path | str | None = None,
    checkpointing: bool = False,
) -> Task:
    """Make a task of a causal language model in a folder.

    `peft` is the configuration of the adapters, such as a `LoraConfig`; without it the whole model is trained. A node's
    texts are at `path` in its `[data]`, a file or a folder of .txt files in UTF-8, cut into rows of `block` tokens. It
    tests on the texts at `test`, else on the last tenth of its own. With `checkpointing`, a step computes a layer's
    activations again in the backward pass, instead of keeping them. Raises UserError: a package or a part of the model
    is missing, or the adapters match none of its modules.
    """
    needed("transformers", EXTRA, "transformers")
    adapted = Adapted(folder=checked_folder(Path(model)), peft=peft, checkpointing=checkpointing)
    return adapted.task(block, None if test is None else Path(test))


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
    checkpointing: bool = False,
    ffa: bool = False,
) -> Task:
    """Make the task `lora` of a federation file. By default all linear layers but the last have adapters of `rank`."""
    needed("peft", EXTRA, "peft")
    from peft import LoraConfig  # noqa: PLC0415 - an extra

    if ffa:
        raise UserError("is gone: both halves of an adapter are exchanged", key="task.ffa", value=ffa)
    if rank < 1:
        raise UserError("not a rank", key="task.rank", value=rank, allowed="a whole number from 1")
    if not 0 < alpha < math.inf:
        raise UserError("not a scale", key="task.alpha", value=alpha, allowed="a number above 0")
    if not 0 <= dropout < 1:
        raise UserError("not a share", key="task.dropout", value=dropout, allowed="from 0 to below 1")
    adapters = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=modules or "all-linear",
        task_type="CAUSAL_LM",
    )
    test = base_dir / test_path if test_path else None
    return task(base_dir / model, peft=adapters, block=block, test=test, checkpointing=checkpointing)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapted:
    """A pretrained model with adapters of the configuration `peft`; without it, a model that is trained as a whole."""

    folder: Path
    peft: Any
    checkpointing: bool = False

    def task(self, block: int, test: Path | None) -> Task:
        base = _loaded(self.folder)
        refuse_unmatched(base, self.peft)
        refuse_block(block, getattr(base.config, "max_position_embeddings", None))
        words = getattr(base.config, "vocab_size", None)

        def rows_of(path: Path) -> Any:
            return blocks_of(texts_in(path), _tokenizer(self.folder), block, words)

        def data(node: NodeContext) -> Any:
            node.check_local("path")
            rows = rows_of(node.path())
            held = max(1, len(rows) // HELD_OUT)
            tested = rows[-held:] if test is None else rows_of(test)
            own = rows[:-held] if test is None else rows
            return (own, own), (tested, tested)

        return Task(
            model=lambda: CausalLoss(self.made()),
            data=data,
            loss=mean_loss,
            metrics={"perplexity": PERPLEXITY},
            metric="perplexity",
            name="lora" if self.peft is not None else "transformers",
            digest=self.digest(),
            folders={"merged": self.write_whole} | ({} if self.peft is None else {"peft": self.write_adapters}),
        )

    def digest(self) -> bytes:
        """Return a digest of the pretrained model and of how adapters change it, because only then may they be mixed.

        Shapes do not show all of that: not `alpha`, which scales the adapters.
        """
        if self.peft is None:
            return _digest(self.folder)
        usual = type(self.peft)().to_dict()
        own = {key: value for key, value in self.peft.to_dict().items() if key not in LOCAL and value != usual.get(key)}
        # False: the half A of each adapter is not frozen, as it could be once; so nodes of the version before agree.
        text = json.dumps([type(self.peft).__name__, own, False], sort_keys=True, default=_plain)
        return hashlib.blake2b(_digest(self.folder) + text.encode(), digest_size=32, person=b"p2pfl-adapters").digest()

    def made(self) -> Any:
        """Return a model with new adapters around the same frozen weights, or a copy of it all without `peft`."""
        base = _loaded(self.folder)
        if self.peft is None:
            model = copy.deepcopy(base).requires_grad_(requires_grad=True)
        else:
            from peft import get_peft_model  # noqa: PLC0415 - an extra

            shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
            with _no_future_warnings():
                model = get_peft_model(copy.deepcopy(base, shared), copy.deepcopy(self.peft))
        if self.checkpointing:
            with _no_future_warnings():
                model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def write_adapters(self, made: nn.Module, to: Path) -> None:
        """Write the adapters of a `CausalLoss` as a folder that peft loads."""
        cast("CausalLoss", made).net.save_pretrained(to, save_embedding_layers=False)

    def write_whole(self, made: nn.Module, to: Path) -> None:
        """Write a `CausalLoss`, its adapters merged, with the tokenizer as a folder that transformers loads."""
        net = cast("CausalLoss", made).net
        whole = net if self.peft is None else copy.deepcopy(net).merge_and_unload()  # it writes to frozen weights
        whole.save_pretrained(to)
        _tokenizer(self.folder).save_pretrained(to)


@contextmanager
def _no_future_warnings() -> Iterator[None]:
    """Hide what peft and transformers tell each other of their next versions: a user cannot mend it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


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
        named = ((name, tensor) for name, tensor in self.named_parameters() if tensor.requires_grad)
        return {name: tensor if keep_vars else tensor.detach() for name, tensor in named}

    def load_state_dict(self, state_dict: Any, *_: Any, **__: Any) -> Any:
        """Load what `state_dict` returned. Raises RuntimeError: it belongs to other adapters."""
        own = self.state_dict(keep_vars=True)
        if own.keys() != state_dict.keys() or any(own[name].shape != given.shape for name, given in state_dict.items()):
            raise RuntimeError("these tensors belong to other adapters")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state_dict[name])


def mean_loss(outputs: Tensor, _: Any) -> Tensor:
    """Return the mean of the losses (b, t - 1) of all tokens."""
    return outputs.mean()


def _perplexity(outputs: Tensor, _: Any) -> float:
    return float(outputs.double().mean().exp())


PERPLEXITY = Metric(compute=_perplexity, higher_is_better=False, label="perplexity")


def refuse_unmatched(model: Any, peft: Any) -> None:
    """Refuse adapters that match no module of the model. Raises UserError."""
    targets = getattr(peft, "target_modules", None)
    if not isinstance(targets, Iterable) or isinstance(targets, str):
        return
    linear = [name for name, module in model.named_modules() if hasattr(module, "weight") and module.weight.ndim > 1]
    lost = [target for target in targets if not any(name == target or name.endswith(f".{target}") for name in linear)]
    if lost:
        allowed = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        value = ", ".join(sorted(lost))
        raise UserError("the adapters match no module of the model", key="task.modules", value=value, allowed=allowed)


def _plain(value: Any) -> Any:
    """Return a value of a configuration for JSON: sets in order, anything else in words."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def refuse_block(block: int, longest: int | None) -> None:
    """Refuse rows that predict no token, or are longer than the model reads. Raises UserError."""
    if block < SHORTEST or block > (longest or block):
        allowed = f"{SHORTEST} to {longest}" if longest else f"from {SHORTEST}"
        raise UserError("not a number of tokens that the model reads", key="task.block", value=block, allowed=allowed)
