"""Runs and measures language models on CPUs, with the kernels of pare.

    import pare
    model = pare.load("out/my-model-w4")
    print(model.generate("The capital of France is", max_new_tokens=32).text)

A model is a Hugging Face directory or a .gguf file, compressed by pare or not. ValueError and TypeError report what the
caller can mend; RuntimeError reports files, the machine and damaged models. Any thread may call a model: one waits for
another, and the interpreter runs on. Ctrl-C ends a call. `pare.lm_eval` has the class for lm-evaluation-harness.
"""
from __future__ import annotations

import json
import operator
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from pare import _processor

_processor.check()
from pare import _pare  # noqa: E402  (it may end a processor that lacks its instructions)

__all__ = ["Generated", "Likelihood", "Model", "load"]
__version__ = _pare.version


class Generated(NamedTuple):
    """A text that a model has written. Neither `reached_end` nor `reached_stop`: it has max_new_tokens tokens."""

    text: str  # without the prompt and the stop string
    ids: list[int]  # without the prompt and an end token; with those of a stop string
    reached_end: bool  # the model ended it with a token
    reached_stop: bool  # a stop string ended it


class Likelihood(NamedTuple):
    """How probable a continuation is after its context."""

    sum: float  # ln of its probability
    is_greedy: bool  # each of its tokens is the most probable one
    num_tokens: int
    num_cut: int  # tokens of the context that did not fit, from its beginning


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, found {type(value).__name__}")
    value.encode()  # UnicodeEncodeError, a ValueError, for half a pair of surrogates
    return value


def _texts(values: Any, name: str) -> list[str]:
    if isinstance(values, str):
        raise TypeError(f"{name}: expected several str, found one: put it into a list")
    return [_text(value, f"{name}[{n}]") for n, value in enumerate(values)]


def _ids(values: Any) -> numpy.ndarray:
    """Token ids as int32 [T]."""
    array = numpy.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"ids: expected a sequence of whole numbers, found an array of {array.ndim} dimensions")
    if array.size == 0:
        return numpy.empty(0, numpy.int32)
    if array.dtype.kind not in "iu":
        raise TypeError(f"ids: expected whole numbers, found {array.dtype}")
    limits = numpy.iinfo(numpy.int32)
    if array.min() < limits.min or array.max() > limits.max:
        raise ValueError("ids: expected whole numbers of 32 bits, found larger ones")
    return numpy.ascontiguousarray(array, numpy.int32)


def _whole(value: Any, name: str, least: int, bits: int = 63) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, found {type(value).__name__}") from None
    if not least <= number < 2**bits:
        raise ValueError(f"{name} {number}: expected a whole number from {least} to {2**bits - 1}")
    return number


def _draw_options(
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    seed: int,
    stop: str | Iterable[str],
) -> _pare.DrawOptions:
    options = _pare.DrawOptions()
    options.max_new_tokens = _whole(max_new_tokens, "max_new_tokens", 1)
    options.temperature = float(temperature)
    options.top_k = _whole(top_k, "top_k", 0)
    options.top_p = float(top_p)
    options.min_p = float(min_p)
    options.repetition_penalty = float(repetition_penalty)
    options.seed = _whole(seed, "seed", 0, bits=64)
    options.stop = [_text(stop, "stop")] if isinstance(stop, str) else _texts(stop, "stop")
    return options


# Stands behind a message that is to be continued while the template writes it, as in transformers.
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def _tagged(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if not messages or not isinstance(messages[-1].get("content"), str):
        raise ValueError("continue_final_message: expected a last message whose content is a str")
    return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + _TAG}]


def _until_tag(text: str) -> str:
    place = text.rfind(_TAG.strip())
    if place < 0:
        raise RuntimeError("continue_final_message: the chat template does not write the last message's content")
    # Without the tag's blank, the template trims messages.
    return text[:place] if text.startswith(_TAG, place) else text[:place].rstrip()


def _generated(text: bytes, *others: Any) -> Generated:
    return Generated(text.decode(errors="replace"), *others)


def load(
    path: str | os.PathLike[str],
    *,
    num_threads: int = 0,
    max_tokens: int | str = 0,
    kv_bits: int = 32,
    check_files: bool = False,
    progress: Callable[[float], Any] | None = None,
) -> Model:
    """Loads a model and its tokenizer.

    num_threads: 0 stands for OMP_NUM_THREADS, or one for each CPU that the process may use. max_tokens: the longest
    sequence that will be asked for; 0 is the model's context, but at most 2048, and "context" is the whole context.
    kv_bits: 32, 16 (bf16) or 8, of keys and values while texts are written. check_files: compare the files with the
    checksums of their pare.json. progress: called with the share of the weights that is loaded.
    """
    if max_tokens == "context":
        max_tokens = _pare.whole_context
    else:
        max_tokens = _whole(max_tokens, "max_tokens", 0)
    loaded = _pare.load(
        pathlib.Path(path),
        _whole(num_threads, "num_threads", 0, bits=31),
        max_tokens,
        _whole(kv_bits, "kv_bits", 0, bits=31),
        bool(check_files),
        progress,
    )
    return Model(loaded, pathlib.Path(path))


class Model:
    """A decoder and its tokenizer, as load() gives it. It cannot be copied or pickled: load it in each process."""

    def __init__(self, loaded: _pare.Model, path: pathlib.Path) -> None:
        if not isinstance(loaded, _pare.Model):
            raise TypeError("a model is made by pare.load(path)")
        self._model = loaded
        self.path = path

    def __repr__(self) -> str:
        return f"<pare.Model of {str(self.path)!r}: {self.vocabulary_size} tokens, sequences of {self.max_tokens}>"

    def __reduce__(self) -> Any:
        raise TypeError("a pare.Model cannot be copied or pickled: call pare.load in each process")

    @property
    def vocabulary_size(self) -> int:
        """The number of logits, V. The tokenizer may have fewer tokens."""
        return self._model.vocabulary_size

    @property
    def max_tokens(self) -> int:
        """The most tokens of a sequence (load)."""
        return self._model.max_tokens

    @property
    def context_length(self) -> int:
        """The most tokens that the model can be loaded for."""
        return self._model.context_length

    @property
    def num_threads(self) -> int:
        return self._model.num_threads

    @property
    def chat_template(self) -> str:
        """The model's chat template in Jinja; "" if it has none."""
        return self._model.chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text, with those that the tokenizer puts around it."""
        return self._model.tokenize(_text(text, "text"), bool(add_special_tokens))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens. U+FFFD stands for bytes that are no UTF-8."""
        return self._model.text_of(_ids(ids)).decode(errors="replace")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """A conversation as the model's template writes it, like that of transformers.

        continue_final_message: the text ends with the last message's own, so that the model goes on with it. It holds
        the special tokens: encode it with add_special_tokens=False. `variables` are the template's own, such as
        enable_thinking. Throws ValueError for a model without a template, RuntimeError where the template fails.
        """
        conversation: dict[str, Any] = {"messages": list(messages)}
        if continue_final_message:
            if add_generation_prompt:
                raise ValueError("continue_final_message goes on with the last message: add_generation_prompt=False")
            conversation["messages"] = _tagged(messages)
        if tools is not None:
            conversation["tools"] = list(tools)
        if variables:
            conversation["chat_template_kwargs"] = variables
        text = self._model.chat_text(_text(json.dumps(conversation), "messages"), bool(add_generation_prompt))
        return _until_tag(text) if continue_final_message else text

    def logits(self, ids: Iterable[int]) -> numpy.ndarray:
        """float32 [T, V]: the logits behind each id. The memory that they take grows with both."""
        return self._model.logits(_ids(ids))

    def score(self, ids: Iterable[int]) -> numpy.ndarray:
        """float32 [T - 1]: ln p(ids[t + 1] | ids[: t + 1])."""
        return self._model.score(_ids(ids))

    def loglikelihood(self, context: str, continuation: str) -> Likelihood:
        """How probable the continuation is after the context, as lm-evaluation-harness asks it.

        Blanks at the end of the context begin the continuation. What does not fit max_tokens is cut from the left. An
        empty context is the token that begins texts.
        """
        return self.loglikelihoods([(context, continuation)])[0]

    def loglikelihoods(
        self, pairs: Iterable[tuple[str, str]], progress: Callable[[float], Any] | None = None
    ) -> list[Likelihood]:
        """The same for several pairs of (context, continuation). Neighbours with one context are worked on together."""
        checked = []
        for n, pair in enumerate(pairs):
            context, continuation = pair
            checked.append((_text(context, f"pairs[{n}][0]"), _text(continuation, f"pairs[{n}][1]")))
        return [Likelihood(*values) for values in self._model.loglikelihoods(checked, progress)]

    def text_loglikelihoods(
        self, texts: Iterable[str], progress: Callable[[float], Any] | None = None
    ) -> list[float]:
        """ln of each text's probability, from its first token on. Long ones go through the model in windows."""
        return self._model.text_loglikelihoods(_texts(texts, "texts"), progress)

    def generate(
        self,
        prompt: str,
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: str | Iterable[str] = (),
        on_text: Callable[[str], Any] | None = None,
    ) -> Generated:
        """Continues a prompt, to which it adds the special tokens.

        temperature 0 always takes the most probable token; otherwise tokens are drawn from the top_k most probable
        ones, of these from the fewest whose probabilities sum to top_p, and of these from those at least min_p times as
        probable as the first; 0, 1 and 0 take all. The text ends before the first of the strings `stop`. on_text gets
        it piece by piece; what it throws ends the call.
        """
        options = _draw_options(max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop)
        hear = None if on_text is None else lambda piece: on_text(piece.decode(errors="replace"))
        return _generated(*self._model.generate(_text(prompt, "prompt"), options, hear))

    def generate_ids(
        self,
        prompt: Iterable[int],
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
    ) -> list[int]:
        """Continues a prompt in ids, also with a model without a tokenizer. Returns the new ids."""
        options = _draw_options(max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, ())
        return self._model.generate_ids(_ids(prompt), options)

    def generate_until(
        self,
        prompts: Iterable[str],
        max_new_tokens: int = 256,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: str | Iterable[str] = (),
        progress: Callable[[float], Any] | None = None,
    ) -> list[Generated]:
        """Continues several prompts, up to 16 at a time, as lm-evaluation-harness does.

        A prompt that begins with the special tokens gets no others. One that leaves no room for max_new_tokens is cut
        from the left. Each text is decoded from its ids alone, and draws with a seed of its own.
        """
        options = _draw_options(max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop)
        return [_generated(*text) for text in self._model.generate_until(_texts(prompts, "prompts"), options, progress)]
