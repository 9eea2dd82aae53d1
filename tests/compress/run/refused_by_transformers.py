"""Exits with 1 and names what transformers loads of models that it must not load: they are in containers of our own.

usage: refused_by_transformers.py MODEL_DIR...

Both ways to load one are tried: by the names in config.json, and by the class that the user names.
"""
import json
import pathlib
import sys

import transformers

transformers.logging.set_verbosity_error()
loaded = []
for directory in map(pathlib.Path, sys.argv[1:]):
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    architecture = config["architectures"][0].removeprefix("Pare")
    for name in ("AutoModel", "AutoModelForCausalLM", architecture):
        try:
            getattr(transformers, name).from_pretrained(directory)
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever it is, it is loud
            print(f"{directory.name}, {name}: {type(error).__name__}: {str(error)[:100]}")
        else:
            loaded.append(f"{directory.name} by {name}")
sys.exit("loaded without an error: " + ", ".join(loaded) if loaded else 0)
