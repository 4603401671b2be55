"""A causal language model of 8 words with random weights, as a Hugging Face folder, and a text for it."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

LETTERS = "abcdefgh"
TEXT = " ".join(LETTERS[(index * index) % 8] for index in range(1200))


def write_model(place: Path) -> None:
    vocabulary = {"<eos>": 0, **{letter: index + 1 for index, letter in enumerate(LETTERS)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>").save_pretrained(place)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape["initializer_range"] = 0.5  # of larger logits, which adapters below the last layer can change
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=9, max_position_embeddings=64, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(place)
