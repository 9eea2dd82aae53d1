"""How the outputs of two builds are compared: every file byte by byte, but for what IGNORED and CORRECTIONS list."""
import fnmatch
import json
import os
import re
import subprocess

from compare_data import read_safetensors

# JSON file (glob) -> what of it is not compared (globs of places): who wrote it, how long it took, how much memory the
# process had, and the checksum that a file carries of itself, these included. Nothing else is left out.
MEASURED = ["seconds", "tokens_per_second", "peak_memory_bytes"]
VERSIONS = ["version of pare", "version of LibTorch"]
REPORTED = [
    *MEASURED,
    "stage_seconds",
    "peak_resident_bytes",
    *(f"{where}.{what}" for where in ("budget.measured", "training", "*[[]*]") for what in MEASURED),
]
IGNORED = {
    "pare.json": [
        "pare",
        *(f"fingerprint.{version}" for version in VERSIONS),
        "calibration.statistics_sha256",  # of a file that says who wrote it, and is itself compared
        "calibration.statistics_pare",
        "sha256",
    ],
    "progress/run.json": [*(f"content.{version}" for version in VERSIONS), "sha256"],
    "progress/[0-9]*.json": ["content.layers[[]*].seconds", "sha256"],
    "report.json": [*REPORTED, "page", "sha256"],
    "eval*.json": MEASURED,
    "generated.json": ["prefill_tokens_per_second", "decode_tokens_per_second", "peak_memory_bytes"],
    "said*.json": REPORTED,  # by run, record, calibrate and tokenize with --json
}
# Of what commands print for people, in files lines*.txt: lines, and ends of lines, that say how long it took and how
# much memory the process had.
SPOKEN = r"^(speed|peak memory) .*\n|, [0-9.]+ s, peak memory .*$"
PAGE = "report.html"  # made of report.json and pare.json, which are compared; it shows what is measured as well
SEALED = "training/state"  # a training state: JSON with a checksum, under a name that does not say so
# Intended changes: (case, file, JSON path, tensor or "" for the whole file; all globs) -> why. Each use is printed.
ROUTES = "training routes tokens to experts with the runtime's softmax, whose last bits are others than LibTorch's"
OPTIONS = "eval has its options from the evaluations' fields, in their order, and recipes have all of them"
FLOATS = "a .gguf of floats keeps its types"
CARDS = "every artifact has a model card, whose figures pare.json holds"
HEADS = "transformers 5 loads a distilled model with a tied head: its head is named as not quantized"
CORRECTIONS = {
    (case, "*", "*"): ROUTES
    for case in ("distill-*experts*", "distill-*qwen3_moe*", "reconstruct-*experts*", "reconstruct-*qwen3_moe*",
                 "state-distill-float32")
} | {
    ("help", file, "*"): OPTIONS
    for file in ("help-eval.txt", "runtime-eval.txt", "man.txt", "complete-*.txt", "recipes.md", "schema.json")
} | {
    ("*", file, place): CARDS for file, place in (
        ("*README*.md", ""), ("*pare.json", "outputs.README*"), ("*pare.json", "sizes"), ("*pare.json", "evaluations"),
        ("*pare.json", "base_model"), ("*pare.json", "outputs"), ("*report.html", ""), ("*report.json", "layer_bytes"),
        ("said*.json", "*layer_bytes"), ("*.json", "*kl_histogram"))
} | {
    ("help", file, "*"): "there is a command card, and recipes name their base model"
    for file in ("help.txt", "help-*.txt", "man.txt", "complete-*.txt", "recipes.md", "schema.json")
} | {
    ("import-*", file, "*"): FLOATS for file in ("out/config.json", "out/model.safetensors")
} | {
    ("distill-*", "out/config.json", "quantization_config.ignore*"): HEADS,
    ("distill-*", "out/pare.json", "outputs.config.json"): HEADS,
    ("*", "*progress/*.json", "content.layers[*].damping"): "a layer without damping says null",
} | {
    ("stories-commands", "generated.json", key): "what is generated says how tokens were drawn"
    for key in ("temperature", "top_k", "top_p")
} | {
    (case, file, place): "a scheme says code and layout in place of format; new options: code, resolve_exact"
    for case, file, place in (
        ("*", "*pare.json", "fingerprint.recipe"),
        ("*", "*progress/run.json", "content.recipe"),
        ("*", "*progress/*.json", "content.*.scheme*"),
    )
}


# --- differences ---


def json_differences(old, new, path=""):
    """Yields (path, what); values are exact, since numbers are read as their texts."""
    if type(old) is not type(new):
        yield path, f"{shown(old)} became {shown(new)}"
    elif isinstance(old, dict):
        here = path + "." if path else ""
        for name in old:
            if name not in new:
                yield here + name, "is gone"
            else:
                yield from json_differences(old[name], new[name], here + name)
        for name in new:
            if name not in old:
                yield here + name, f"is new: {shown(new[name])}"
        if list(old) != list(new) and set(old) == set(new):
            yield path, "keys in another order"
    elif isinstance(old, list):
        for i, (a, b) in enumerate(zip(old, new)):
            yield from json_differences(a, b, f"{path}[{i}]")
        if len(old) != len(new):
            yield path, f"{len(old)} items became {len(new)}"
    elif old != new:
        yield path, f"{shown(old)} became {shown(new)}"


def shown(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def parse_json(data):
    def exact(number):
        return f"number {number}"
    return json.loads(data, parse_float=exact, parse_int=exact)


def tensor_differences(old_path, new_path):
    (old, old_metadata), (new, new_metadata) = read_safetensors(old_path), read_safetensors(new_path)
    found = False
    for name in sorted(old.keys() | new.keys()):
        if name not in new or name not in old:
            yield name, f"tensor is {'gone' if name in old else 'new'}"
            found = True
    for name in sorted(old.keys() & new.keys()):
        (old_type, old_shape, a), (new_type, new_shape, b) = old[name], new[name]
        if (old_type, old_shape) != (new_type, new_shape):
            yield name, f"{old_type} {old_shape} became {new_type} {new_shape}"
            found = True
        elif a != b:
            elements = 1
            for extent in old_shape:
                elements *= extent
            size = max(1, len(a) // max(1, elements))
            at = first_difference(a, b) // size * size
            yield name, (
                f"{old_type} {old_shape}, first at element {at // size}: bytes {a[at:at + size].hex()} became "
                f"{b[at:at + size].hex()}"
            )
            found = True
    if old_metadata != new_metadata:
        yield "__metadata__", f"{shown(old_metadata)} became {shown(new_metadata)}"
    elif not found:
        yield "", "same tensors, but the header or the order of the file differs"


def first_difference(a, b):
    low, high = 0, min(len(a), len(b))  # the first differing byte is in [low, high]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if a[low:middle + 1] != b[low:middle + 1] else (middle + 1, high)
    return low


def hdf5_text(path):
    """The whole file and how it is stored, as h5dump writes it, without who wrote it; and who wrote it. 17 digits tell
    all numbers apart."""
    text = subprocess.run(["h5dump", "-p", "-m", "%.17g", path], check=True, capture_output=True, text=True).stdout
    text = text[text.index("\n") + 1:]  # the first line names the file
    writer = r'ATTRIBUTE "(?:pare|libtorch)" \{.*?\n   \}\n'
    return re.sub(writer, "", text, flags=re.DOTALL).splitlines(), re.findall(writer, text, flags=re.DOTALL)


def hdf5_differences(old_path, new_path):
    (old, old_writer), (new, new_writer) = hdf5_text(old_path), hdf5_text(new_path)
    where = []
    for i, (a, b) in enumerate(zip(old, new)):
        match = re.match(r'( *)(?:GROUP|DATASET|ATTRIBUTE) "([^"]*)"', a)
        if match:
            where = [item for item in where if item[0] < len(match.group(1))] + [(len(match.group(1)), match.group(2))]
        if a != b:
            yield "/".join(name for _, name in where), f"'{a.strip()[:60]}' became '{b.strip()[:60]}'"
            return
    if len(old) != len(new):
        yield "", "holds more or fewer objects"
    elif old_writer == new_writer:
        yield "", "the same values, written otherwise"


def file_differences(name, old_path, new_path):
    """Yields (place in the file, what differs)."""
    old, new = old_path.read_bytes(), new_path.read_bytes()
    base = os.path.basename(name)
    if old == new or base == PAGE:
        return
    if base.endswith(".json") or name.endswith(SEALED):
        ignored = [place for pattern, places in IGNORED.items() if fnmatch.fnmatchcase("/" + name, "*/" + pattern)
                   for place in places]
        differences = list(json_differences(parse_json(old), parse_json(new)))
        for path, what in differences:
            if not any(fnmatch.fnmatchcase(path, end) for item in ignored for end in (item, item + ".*")):
                yield path, what
        if not differences:
            yield "", "the same values, written otherwise"
    elif base.endswith(".safetensors"):
        yield from tensor_differences(old_path, new_path)
    elif base.endswith(".h5"):
        yield from hdf5_differences(old_path, new_path)
    elif fnmatch.fnmatchcase(base, "lines*.txt"):
        a, b = (re.sub(SPOKEN, "", text.decode(), flags=re.MULTILINE).splitlines() for text in (old, new))
        yield from json_differences(a, b)
    else:
        at = first_difference(old, new)
        yield "", f"byte {at} of {len(old)} (new: {len(new)}): {old[at:at + 8]!r} became {new[at:at + 8]!r}"


def output_files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def matches(pattern, text):
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def compare(case_name, old, new):
    """Lines of differences, and (why, line) of those that CORRECTIONS lists."""
    differences, corrected = [], []
    names = sorted(set(output_files(old)) | set(output_files(new)))
    for name in names:
        if not (old / name).exists() or not (new / name).exists():
            found = [("", "the file is " + ("new" if (new / name).exists() else "gone"))]
        else:
            found = file_differences(name, old / name, new / name)
        for place, what in found:
            line = f"{name}: {place + ': ' if place else ''}{what}"
            why = next(
                (
                    why
                    for (case, file, path), why in CORRECTIONS.items()
                    if matches(case, case_name)
                    and matches(file, name)
                    and (matches(path, place) if path else not place)
                ),
                None,
            )
            if why is None:
                differences.append(line)
            else:
                corrected.append((why, line))
    return differences, corrected


def summary(corrected):
    """A line for each reason, with its first place."""
    first = {}
    for why, line in corrected:
        first.setdefault(why, line)
    return [f"intended ({why}): {line}" + (f" and {count - 1} more" if count > 1 else "") for why, line in first.items()
            for count in [sum(reason == why for reason, _ in corrected)]]
