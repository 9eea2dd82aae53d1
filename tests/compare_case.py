"""What a case of compare_builds.py is, and what cases are written with.

Paths in recipes are relative to the folder a case runs in, which links tests, calibration_data, models and data (made
by compare_data.py).
"""
from typing import NamedTuple, Optional


class Step(NamedTuple):
    words: list  # the command without the program and without --threads
    capture: Optional[str] = None  # standard output becomes this file
    complaint: Optional[str] = None  # standard error becomes this file
    feed: Optional[str] = None  # standard input is this file
    spill: Optional[str] = None  # "inputs", "all": with a --max-memory that spills so
    needs_cpu: Optional[str] = None  # a flag of /proc/cpuinfo; left out without it
    program: str = "pare"  # or "pare-runtime", which lies beside it
    status: int = 0  # the exit status expected


class Case(NamedTuple):
    name: str
    files: dict  # name -> text, there before the first step
    steps: list


FAMILIES = [
    "llama_gqa_untied",
    "llama3_rope_tied",
    "llama_mqa_biases",
    "llama_sharded_fp16",
    "mistral_window",
    "qwen2_biases_tied",
    "qwen3_norms_bf16",
    "gemma3_local_global",
    "mixtral_experts",
    "qwen3_moe_dense_block_bf16",
    "qwen3_moe_fused",
]
MIXTURES = FAMILIES[-3:]

WIDE, WIDE_BF16 = "data/wide", "data/wide_bf16"
WIDE_IDS = "{text: data/wide.npy, samples: 6, tokens: 256}"
LONG_IDS = "{text: data/long.npy, samples: 18, tokens: 256}"  # more tokens than one chunk of H
SMALL_IDS = "{text: data/small.npy, samples: 24, tokens: 64}"
TEXTS = "{text: data/texts.txt, samples: 40}"
STORIES, STORIES_TEXT = "calibration_data/stories260k", "{text: calibration_data/stories.txt, samples: 8, tokens: 128}"
BERT = "tests/golden/encoders/bert_tiny"
PROMPTS = "".join(f'{{"prompt": "{text}"}}\n' for text in
                  ("Once upon a time", "Lily and Tom", "The big dog", "One day"))
INSTRUCTIONS = """[{"instruction": "Tell a story.", "input": "", "output": "Once upon a time there was a dog."},
 {"instruction": "Say who ran.", "input": "The cat ran.", "output": "The cat"}]
"""


def family(name):
    return f"tests/golden/families/{name}"


def speaking(name):
    """The family's model with a tokenizer."""
    return f"data/speaking/{name}"


def recipe(model, calibration, passes, more=""):
    lines = [f"model: {model}"] + ([f"calibration: {calibration}"] if calibration else [])
    if passes:
        lines += ["passes:"] + ["  - " + item.replace(" layers:", "\n    layers:") for item in passes]
    return "\n".join(lines) + "\n" + (more + "\n" if more else "")


def run(name, model, calibration, *passes, more="", spill=None):
    return Case(name, {"recipe.yaml": recipe(model, calibration, passes, more)},
                [Step(["run", "recipe.yaml", "--out", "out"], spill=spill)])
