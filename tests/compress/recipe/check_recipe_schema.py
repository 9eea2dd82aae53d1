#!/usr/bin/env python3
"""Checks a schema of recipes by an independent validator: it accepts every recipe, and refuses what is wrong.

usage: check_recipe_schema.py SCHEMA.json RECIPE.yaml ...
"""
import json
import pathlib
import re
import sys

import jsonschema
import yaml


class Loader(yaml.SafeLoader):
    """YAML 1.2, as editors and pare read it: 2:4 and yes are texts, 1e-3 is a number."""


Loader.yaml_implicit_resolvers = {}
for tag, pattern, first in [
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
]:
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))
# PyYAML's own makes octal numbers of those that begin with 0.
Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))

GOOD = """
passes: [{rtn: {}}]
---
passes: [{gptq: {prune: 2:4, activations: int8}, layers: {override: {"*.o_proj": {bits: 8}}}}]
---
passes: [{magnitude: {pattern: unstructured, ratio: 1}}]
---
budget: {size: 80MB}
---
budget: {size: 80000000, allow: [2, 16]}
---
passes: [{distill: {text: [a.txt, b.jsonl], learning_rate: 1e-3}}]
---
calibration: {text: t, seed: 9223372036854775807}
---
sweep: {grid: {gptq.bits: [3, 4], passes: [[rtn: {}]]}}
---
sweep: {grid: [{gptq.bits: [3]}, {head.bits: [8]}], statistics: false}
"""

# Each is wrong in one thing.
BAD = """
modle: m
---
sweep: {grid: {gptq.bits: []}}
---
sweep: {grid: {gptq.bits: 3}}
---
sweep: {grid: []}
---
sweep: {grids: {}}
---
passes: {rtn: {}}
---
passes: [{rtm: {}}]
---
passes: [{rtn: {bit: 4}}]
---
passes: [{rtn: {bits: 5}}]
---
passes: [{rtn: {bits: four}}]
---
passes: [{rtn: {symmetric: 1}}]
---
passes: [{rtn: {}, gptq: {}}]
---
passes: [{layers: {exclude: [a]}}]
---
passes: [{rtn: {act_order: static}}]
---
passes: [{rtn: {activations: fp8}}]
---
passes: [{fp8: {activations: {symmetric: false}}}]
---
passes: [{gptq: {damping: 0}}]
---
passes: [{gptq: {damping: 1.001}}]
---
passes: [{gptq: {block_size: 4097}}]
---
passes: [{gptq: {prune: 2-4}}]
---
passes: [{wanda: {allocation: global}}]
---
passes: [{awq: {}, layers: {override: {"*": {grid_points: 3}}}}]
---
passes: [{gptq: {}, layers: {override: {"*": {refine: 3}}}}]
---
passes: [{distill: {text: t, minillm: {clip_rang: 1}}}]
---
storage: packed
---
calibration: {text: t, samples: 0}
---
calibration: [t]
---
student: {layers: -1}
---
head: {bits: 16}
---
budget: {size: 80 parsecs}
---
budget: {bits: 0.5}
---
budget: {bits: 4, allow: [5]}
---
evaluate: [{}]
---
evaluate: [{perplexity: {text: t, kv_bits: 4}}]
---
evaluate: [{embeddings: {pairs: p, referenc: true}}]
---
fail_if: {cosine: 2}
---
strict: maybe
---
container: awq
---
- model: m
"""


def main():
    schema = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    wrong = []
    accepted = [(path, yaml.load(pathlib.Path(path).read_text(encoding="utf-8"), Loader)) for path in sys.argv[2:]]
    accepted += [(str(recipe), recipe) for recipe in yaml.load_all(GOOD, Loader)]
    for name, recipe in accepted:
        error = jsonschema.exceptions.best_match(validator.iter_errors(recipe))
        if error:
            wrong.append(f"{name} is refused: {error.json_path}: {error.message}")
    refused = list(yaml.load_all(BAD, Loader))
    wrong += [f"accepted: {recipe}" for recipe in refused if validator.is_valid(recipe)]
    print("\n".join(wrong) or f"{len(accepted)} recipes accepted, {len(refused)} refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
