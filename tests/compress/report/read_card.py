"""Prints, as JSON, what huggingface_hub reads of a model card: {"data": ..., "text": ...}; and checks what the Hub
demands of its metadata, but for the questions that only the Hub can answer."""
import json
import sys

from huggingface_hub import ModelCard

card = ModelCard.load(sys.argv[1], ignore_metadata_errors=False)
assert card.text.startswith("\n# ") or "\n# " in card.text, "no title"
json.dump({"data": card.data.to_dict(), "text": card.text}, sys.stdout)
