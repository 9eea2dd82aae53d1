"""Lets lm-evaluation-harness 0.4.13 measure models with the kernels of pare.

    python -m pare.lm_eval run --model pare --model_args pretrained=out/my-model-w4 --tasks piqa

The command is the harness' own, which knows the model `pare` beside its others. A program imports this module, and
gives `PareLM(pretrained)` or the name "pare" to lm_eval.simple_evaluate.
"""
from __future__ import annotations

import logging
import os
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from tqdm import tqdm

import pare

_LOGGER = logging.getLogger(__name__)
# What a request may ask for beside what normalize_gen_kwargs reads.
_DRAW_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


@register_model("pare")
class PareLM(LM):
    """A model of pare for the harness.

    pretrained: a Hugging Face directory or a .gguf. max_length: the longest sequence, by default the model's context;
    what exceeds it is cut as the harness cuts it for Hugging Face models. max_gen_toks: the most new tokens where a
    task does not say. num_threads, kv_bits and check_files: as of pare.load. The harness gives batch_size and device:
    pare forms batches by itself, and works on the CPU.
    """

    def __init__(
        self,
        pretrained: str | os.PathLike[str],
        max_length: int | None = None,
        max_gen_toks: int = 256,
        num_threads: int = 0,
        kv_bits: int = 32,
        check_files: bool = False,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        if device not in (None, "cpu"):
            _LOGGER.info("the model 'pare' works on the CPU; the harness' default device is %s", device)
        if batch_size not in (None, 1, "1") or max_batch_size is not None:
            _LOGGER.warning("batch_size has no effect on the model 'pare', which forms batches by itself")
        self.model = pare.load(
            pretrained,
            num_threads=num_threads,
            max_tokens="context" if max_length is None else max_length,
            kv_bits=kv_bits,
            check_files=check_files,
        )
        self.max_gen_toks = max_gen_toks

    @property
    def max_length(self) -> int:
        return self.model.max_tokens

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The default template, which conversations are written by; None if none is asked for."""
        if chat_template is False or chat_template is None:
            return None
        if isinstance(chat_template, str) and chat_template != "default":
            raise ValueError(f"chat template {chat_template!r}: pare writes conversations by the model's default one")
        if not self.model.chat_template:
            raise ValueError(f"{self.model.path} has no chat template: leave out --apply_chat_template")
        return self.model.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.model.apply_chat_template(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        pairs = [request.args for request in requests]
        with _Bar(len(pairs), "loglikelihood", disable_tqdm) as bar:
            found = [(one.sum, one.is_greedy) for one in self.model.loglikelihoods(pairs, bar.to)]
        for pair, result in zip(pairs, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, result)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        texts = [request.args[0] for request in requests]
        with _Bar(len(texts), "loglikelihood_rolling", disable_tqdm) as bar:
            found = self.model.text_loglikelihoods(texts, bar.to)
        for text, result in zip(texts, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), result)
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        groups: dict[str, list[int]] = {}  # requests with the same settings go together
        for n, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(n)
        results = [""] * len(requests)
        for numbers in groups.values():
            contexts = [requests[n].args[0] for n in numbers]
            settings = self._settings(requests[numbers[0]].args[1])
            with _Bar(len(numbers), "generate_until", disable_tqdm) as bar:
                texts = self.model.generate_until(contexts, progress=bar.to, **settings)
            for n, text in zip(numbers, texts, strict=True):
                results[n] = text.text
                self.cache_hook.add_partial("generate_until", requests[n].args, text.text)
        return results

    def _settings(self, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of pare.Model.generate_until. Throws ValueError for what it does not have."""
        asked = dict(normalize_gen_kwargs(gen_kwargs, self.max_gen_toks))
        is_drawn = asked.pop("do_sample")
        settings = {"max_new_tokens": asked.pop("max_gen_toks"), "stop": [s for s in asked.pop("until") if s]}
        unknown = sorted(name for name in asked if name not in _DRAW_OPTIONS)
        if unknown:
            raise ValueError(f"generation settings {unknown}: pare has {', '.join(_DRAW_OPTIONS)}")
        settings.update({name: value for name, value in asked.items() if value is not None})
        if not is_drawn:
            settings["temperature"] = 0.0
        return settings


class _Bar:
    """The harness' progress bar over a number of requests."""

    def __init__(self, total: int, name: str, is_disabled: bool) -> None:
        self._bar = tqdm(total=total, desc=f"Running {name} requests", disable=is_disabled)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.to(1.0)
        self._bar.close()

    def to(self, share: float) -> None:
        self._bar.update(round(share * self._bar.total) - self._bar.n)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
