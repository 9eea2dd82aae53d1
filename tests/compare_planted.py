"""The test of compare_builds.py: plants differences in copies of outputs and expects each to be found."""
import json
import pathlib
import re
import shutil
import tempfile

import compare_case
from compare_case import Case, Step
from compare_data import read_safetensors, write_safetensors
from compare_files import CORRECTIONS, compare, output_files
from compare_run import make_links, run_case


def flip(path, offset, mask=1):
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(bytes(data))


def edit_json(path, change):
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value, indent=2) + "\n")


def edit_lines(path, pattern, replacement):
    path.write_text(re.sub(pattern, replacement, path.read_text(), flags=re.MULTILINE))


def replace_bytes(path, old, new):
    data = path.read_bytes()
    assert old in data and len(old) == len(new), (path, old)
    path.write_bytes(data.replace(old, new))


def move_tensor(path):
    tensors, metadata = read_safetensors(path)
    write_safetensors(path, dict(reversed(tensors.items())), metadata)


def version_of(folder):
    return json.loads((folder / "out/pare.json").read_text())["pare"].encode()


def self_test(program):
    """Each planted change of a copy must be found at its place, and what is ignored must not be."""
    CORRECTIONS.clear()
    model = compare_case.family("llama_gqa_untied")
    case = Case(
        "planted",
        {
            "calibrate.yaml": compare_case.recipe(model, compare_case.SMALL_IDS, []),
            "recipe.yaml": compare_case.recipe(
                model, "{statistics: statistics.h5}", ["gptq: {bits: 4, group_size: 32}"]
            ),
            "trained.yaml": compare_case.recipe(
                model,
                None,
                ["distill: {text: data/small.npy, total_tokens: 512, validations: 1, validation_windows: 2}"],
                "evaluate: [perplexity: {text: data/small.npy, windows: 1}]\nfail_if: {kl: 0}",
            ),
        },
        [
            Step(["calibrate", "calibrate.yaml", "statistics.h5"]),
            Step(["run", "recipe.yaml", "--out", "out"]),
            Step(["eval", "out", "--text", "data/small.npy", "--windows", "1", "--json", "--quiet"], "eval.json"),
            Step(
                ["tokenize", "calibration_data/stories260k", "--text", "calibration_data/stories.txt", "--quiet"],
                "ids.txt",
            ),
            # What fails the gate leaves the training's state. Here the threads matter.
            Step(["run", "trained.yaml", "--out", "trained", "--threads", "2"], status=1),
            Step(["eval", "out", "--text", "data/small.npy", "--windows", "1", "--quiet"], "lines.txt"),
            Step(["record", "calibration_data/stories260k", "recorded.h5", "--text", "calibration_data/stories.txt",
                  "--windows", "2", "--tokens", "64", "--top-k", "4", "--quiet"]),
        ],
    )
    trained, state = "trained.partial/artifact", "trained.partial/training"
    part = "trained.partial/progress/00001.json"
    weights = "out/model.safetensors"
    packed = "model.layers.1.mlp.down_proj.weight_packed"
    plants = [  # what, how, what the first line must hold (none: no difference)
        ("nothing", lambda f: None, None),
        (
            "a byte of a tensor",
            lambda f: flip(f / weights, -1),
            "v_proj.weight_scale: BF16 [32, 2], first at element 63: ",
        ),
        ("a byte of the header", lambda f: flip(f / weights, 30), "out/model.safetensors"),
        ("the order of tensors", lambda f: move_tensor(f / weights), "out/model.safetensors: same tensors"),
        (
            "a tensor's type",
            lambda f: replace_bytes(f / weights, b'"dtype":"I32"', b'"dtype":"U32"'),
            "weight_packed: I32",
        ),
        (
            "a tensor's name",
            lambda f: replace_bytes(f / weights, packed.encode(), packed.replace("down", "DOWN").encode()),
            "DOWN_proj.weight_packed: tensor is new",
        ),
        (
            "a number of pare.json",
            lambda f: edit_json(f / "out/pare.json", lambda j: j["layers"][3].update(relative_error=1e-3)),
            "out/pare.json: layers[3].relative_error: number ",
        ),
        (
            "the order of keys",
            lambda f: edit_json(f / "out/pare.json", lambda j: j["layers"][3].update(name=j["layers"][3].pop("name"))),
            "layers[3]: keys in another order",
        ),
        (
            "a value written otherwise",
            lambda f: (f / "out/config.json").write_text(json.dumps(json.loads((f / "out/config.json").read_text()))),
            "out/config.json: the same values, written otherwise",
        ),
        (
            "an event",
            lambda f: edit_json(f / "out/pare.json", lambda j: j["events"].append("x")),
            "out/pare.json: events: ",
        ),
        (
            "the version",
            lambda f: edit_json(f / "out/pare.json", lambda j: (
                j.update(pare="9"), j["fingerprint"].update({"version of pare": "9"}))),
            None,
        ),
        (
            "the fingerprint",
            lambda f: edit_json(f / "out/pare.json", lambda j: j["fingerprint"].update(model="x")),
            "out/pare.json: fingerprint.model: ",
        ),
        (
            "an engine",
            lambda f: edit_json(f / "out/pare.json", lambda j: j["engines"].pop()),
            "out/pare.json: engines: ",
        ),
        ("the seconds", lambda f: edit_json(f / "out/report.json", lambda j: j.update(seconds=1)), None),
        (
            "the seconds of a budget's measurement",
            lambda f: edit_json(f / "out/report.json", lambda j: j.update(budget={"measured": {"seconds": 1}})),
            "out/report.json: budget: is new",
        ),
        (
            "the size in the report",
            lambda f: edit_json(f / "out/report.json", lambda j: j.update(output_bytes=1)),
            "out/report.json: output_bytes",
        ),
        (
            "a perplexity",
            lambda f: edit_json(f / "eval.json", lambda j: j.update(perplexity=1.5)),
            "eval.json: perplexity: number ",
        ),
        (
            "the speed of an evaluation",
            lambda f: edit_json(f / "eval.json", lambda j: j.update(seconds=1.5, tokens_per_second=3)),
            None,
        ),
        (
            "a loss of the report",
            lambda f: edit_json(f / trained / "report.json", lambda j: j["training"]["curve"][1].update(loss=1.5)),
            "report.json: training.curve[1].loss: number ",
        ),
        (
            "an evaluation of the report",
            lambda f: edit_json(f / trained / "report.json", lambda j: j["perplexity"][0].update(kl_mean=1.5)),
            "report.json: perplexity[0].kl_mean: number ",
        ),
        (
            "the seconds of a training and of an evaluation",
            lambda f: edit_json(f / trained / "report.json", lambda j: (
                j["training"].update(seconds=1), j["perplexity"][0].update(tokens_per_second=1))),
            None,
        ),
        ("a digit of the curve", lambda f: flip(f / trained / "training.csv", -1), "training.csv: byte "),
        (
            "a moment of the optimizer",
            lambda f: flip(f / state / "step-000002.safetensors", -1),
            "step-000002.safetensors: model.norm.weight.second: F32 [64], first at element 63: ",
        ),
        ("a point of the state", lambda f: replace_bytes(f / state / "state", b'"step": 2', b'"step": 3'),
         "training/state: content.step: number "),
        (
            "the version that a run began with",
            lambda f: edit_json(f / "trained.partial/progress/run.json",
                                lambda j: j["content"].update({"version of pare": "9"})),
            None,
        ),
        (
            "the data that a run began with",
            lambda f: edit_json(f / "trained.partial/progress/run.json",
                                lambda j: j["content"].update({"calibration data": "9"})),
            "progress/run.json: content.calibration data: ",
        ),
        (
            "the seconds of a layer",
            lambda f: edit_json(f / part, lambda j: j["content"]["layers"][0].update(seconds=9)),
            None,
        ),
        (
            "the bits of a layer",
            lambda f: edit_json(f / part, lambda j: j["content"]["layers"][0].update({"scheme.bits": 9})),
            "progress/00001.json: content.layers[0].scheme.bits: ",
        ),
        (
            "the speed that is printed",
            lambda f: edit_lines(f / "lines.txt", r"^speed  .*", "speed  1 tokens/s"),
            None,
        ),
        ("a figure that is printed", lambda f: edit_lines(f / "lines.txt", r"^(nll .*)\d", r"\1x"),
         "lines.txt: [3]: nll"),
        ("a recorded token", lambda f: flip(f / "recorded.h5.shards/00000.h5", -1), "recorded.h5.shards/00000.h5: "),
        ("a file less", lambda f: (f / "out/config.json").unlink(), "out/config.json: the file is gone"),
        ("a file more", lambda f: (f / "out/new").write_text(""), "out/new: the file is new"),
        ("a byte of a text", lambda f: flip(f / "ids.txt", 1000), "ids.txt: byte 1000 of"),
        ("a float of the statistics", lambda f: flip(f / "statistics.h5", -5000), "statistics.h5: /"),
        (
            "the version in the statistics",
            lambda f: replace_bytes(f / "statistics.h5", version_of(f), version_of(f)[:-1] + b"x"),
            None,
        ),
    ]
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        scratch = pathlib.Path(name)
        links = make_links(scratch)
        run_case(program, case, 2, scratch / "old", links)
        run_case(program, case, 1, scratch / "again", links)
        differences, _ = compare(case.name, scratch / "old", scratch / "again")
        assert not differences, f"the number of threads changes {differences[0]}"
        for what, plant, expected in plants:
            shutil.rmtree(scratch / "new", ignore_errors=True)
            shutil.copytree(scratch / "old", scratch / "new")
            plant(scratch / "new")
            differences, _ = compare(case.name, scratch / "old", scratch / "new")
            assert bool(differences) == (expected is not None), f"{what}: {differences or 'not found'}"
            assert (
                expected is None or expected in differences[0]
            ), f"{what}: expected '{expected}' in '{differences[0]}'"
            assert (
                what == "nothing"
                or any(
                    (scratch / "old" / p).read_bytes() != (scratch / "new" / p).read_bytes()
                    for p in set(output_files(scratch / "old")) & set(output_files(scratch / "new"))
                )
                or output_files(scratch / "old") != output_files(scratch / "new")
            ), f"{what}: nothing was planted"
        # A listed correction is let pass at its place alone.
        CORRECTIONS[("plant*", "out/pare.json", "layers[*].relative_error")] = "planted"
        edit_json(scratch / "new/out/pare.json", lambda j: j["layers"][3].update(relative_error=1e-3))
        differences, corrected = compare(case.name, scratch / "old", scratch / "new")
        assert not differences and len(corrected) == 1 and corrected[0][0] == "planted", (differences, corrected)
        edit_json(scratch / "new/out/pare.json", lambda j: j["layers"][3].update(damping=1e-3))
        differences, corrected = compare(case.name, scratch / "old", scratch / "new")
        assert len(differences) == 1 and len(corrected) == 1, (differences, corrected)
        CORRECTIONS.clear()
    print(f"{len(plants) + 2} planted changes: each found or let pass as it must be")
    return 0
