#!/usr/bin/env python3
"""What distillation's losses are worth on a student of SmolLM2 with 10 of its 30 layers, measured with `pare run`.

usage: compare_losses.py table PARE FOLDER [--tokens N] [--batch N] [--jobs N] [--rates A,B,C] [--losses A,B,...]
    [--select BY]
       compare_losses.py seeds PARE FOLDER [--tokens N] [--batch N] [--jobs N] [--losses A=RATE,B=RATE,...] [--seeds N]
       [--select BY] compare_losses.py labels PARE FOLDER [--tokens N] [--batch N] [--jobs N] [--rates HARD,SOFT]
       [--seeds N] [--recorded]
                                            [--soft LOSS] [--select BY]

table: every loss at every learning rate, on the same tokens in the same order, from the same student. seeds: every loss
       at a rate
of its own over several seeds, which draw and order the windows. labels: hard labels of the text
against the teacher's soft ones, over several seeds, one learning rate each; --soft is what learns from the teacher,
with options as in a recipe, such as "soft_label, label_weight: 0.5"; with --recorded the teacher runs once, before all
of them (`pare record`), and both learn on what it has seen. Every run is a folder in FOLDER, kept: what is there is not
run again, so that an interrupted comparison goes on. --select: by what of the validations the one is chosen that is
kept (as in a recipe; without it the recipe's default); the step kept, of how many, stands behind each result.
Perplexities are of WikiText-2, which nobody trains on (text of another source), and of windows of the training texts
(C4, books) that are held back. Run it from the repository's root, with models/smollm2-135m (make demo fetches it).
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import subprocess

LOSSES = [
    "hard_label",
    "soft_label",
    "forward_kl",
    "reverse_kl",
    "jensen_shannon",
    "skew_kl",
    "skew_reverse_kl",
    "total_variation",
    "slim",
    "minillm",
]
MODEL = "models/smollm2-135m"
TEXTS = ["calibration_data/c4.jsonl", "calibration_data/books-to-train.jsonl"]
EVALUATE = (
    "evaluate:\n  - perplexity: {text: calibration_data/windows/wikitext2-smollm2.npy, context: 2048, windows: 10, "
    "reference: false}\n"
)


def run(arguments, folder, recipe):
    """The report of a run, which is begun, taken up again, or there already."""
    path = folder.with_name(folder.name + ".yaml")
    if path.exists() and path.read_text() != recipe:
        raise SystemExit(
            f"{folder}: '{path}' is another recipe than this comparison's: give another folder, or remove both"
        )
    if not (folder / "report.json").exists():
        path.write_text(recipe)
        threads = max(1, len(os.sched_getaffinity(0)) // arguments.jobs)
        subprocess.run(
            [arguments.pare, "run", str(path), "--out", str(folder), "--threads", str(threads), "--quiet"], check=True
        )
    return json.loads((folder / "report.json").read_text())


def make_student(arguments):
    student = arguments.folder / "student"
    run(arguments, student, f"model: {MODEL}\noutput: {student}\nstudent: {{layers: 10, choose: every}}\n{EVALUATE}")
    return student


def record(arguments):
    """The teacher's logits of all the texts."""
    store = arguments.folder / "teacher.h5"
    if not store.exists():
        texts = arguments.folder / "texts.jsonl"
        texts.write_bytes(b"".join(pathlib.Path(text).read_bytes() for text in TEXTS))
        subprocess.run([arguments.pare, "record", MODEL, str(store), "--text", str(texts), "--quiet"], check=True)
    return store


def train(arguments, name, student, loss, rate, seed):
    data = f"logits: {record(arguments)}" if arguments.recorded else f"text: [{', '.join(TEXTS)}]"
    select = f", select: {arguments.select}" if arguments.select else ""
    report = run(
        arguments,
        arguments.folder / name,
        f"model: {MODEL}\noutput: {arguments.folder / name}\npasses:\n  - distill: {{student: {student}, {data}, "
        f"total_tokens: {arguments.tokens}, batch: {arguments.batch}, loss: {loss}, learning_rate: {rate}, seed: "
        f"{seed}, "
        f"validations: 2, validation_windows: 8{select}}}\n"
        f"{EVALUATE}",
    )
    training = report["training"]
    return {"wikitext": report["perplexity"][0]["perplexity"], "held_back": training["kept_validation_perplexity"],
            "kept": f"{training['kept_step']} of {training['steps']}", "minutes": training["seconds"] / 60}


def cell(one):
    return f"{one['wikitext']:.2f} / {one['held_back']:.2f} ({one['kept']})"


def table(arguments, student):
    rates = [float(rate) for rate in arguments.rates.split(",")]
    print(
        f"| loss | "
        + " | ".join(f"{rate:g}" for rate in rates)
        + " | minutes of one |\n|---|"
        + "---|" * (len(rates) + 1)
    )
    pool = concurrent.futures.ThreadPoolExecutor(arguments.jobs)
    runs = {loss: [pool.submit(train, arguments, f"{loss}-{rate:g}", student, loss, rate, 0) for rate in rates]
            for loss in arguments.losses.split(",")}
    for loss, of_rates in runs.items():
        found = [one.result() for one in of_rates]
        best = min(found, key=lambda one: one["wikitext"])
        cells = [("**{}**" if one is best else "{}").format(cell(one)) for one in found]
        print(
            f"| `{loss}` | " + " | ".join(cells) + f" | {statistics.median(one['minutes'] for one in found):.1f} |",
            flush=True,
        )


def seeds(arguments, student):
    print(
        "| loss | rate | "
        + " | ".join(f"seed {seed}" for seed in range(arguments.seeds))
        + " | mean | minutes of one |\n|---|---|"
        + "---|" * (arguments.seeds + 2)
    )
    pool = concurrent.futures.ThreadPoolExecutor(arguments.jobs)
    rates = dict(item.split("=") for item in arguments.losses.split(","))
    runs = {loss: [pool.submit(train, arguments, f"{loss}-{float(rate):g}-seed{seed}", student, loss, float(rate), seed)
                   for seed in range(arguments.seeds)] for loss, rate in rates.items()}
    for loss, of_seeds in runs.items():
        found = [one.result() for one in of_seeds]
        means = (statistics.geometric_mean(one[text] for one in found) for text in ("wikitext", "held_back"))
        print(
            f"| `{loss}` | {float(rates[loss]):g} | "
            + " | ".join(map(cell, found))
            + " | "
            + " / ".join(f"{mean:.0f}" for mean in means)
            + f" | {statistics.median(one['minutes'] for one in found):.1f} |",
            flush=True,
        )


def folder_name(loss):
    return re.sub("[^a-z0-9_.]+", "-", loss)


def labels(arguments, student):
    hard_rate, soft_rate = (float(rate) for rate in arguments.rates.split(","))
    print("| seed | hard | soft | soft / hard |\n|---|---|---|---|")
    ratios = []
    pool = concurrent.futures.ThreadPoolExecutor(arguments.jobs)
    data = "-recorded" if arguments.recorded else ""
    runs = [[pool.submit(train, arguments, f"{folder_name(loss)}{data}-{rate:g}-seed{seed}", student, loss, rate, seed)
             for loss, rate in (("hard_label", hard_rate), (arguments.soft, soft_rate))]
            for seed in range(arguments.seeds)]
    for seed, of_seed in enumerate(runs):
        hard, soft = (one.result() for one in of_seed)
        ratios.append(soft["wikitext"] / hard["wikitext"])
        print(f"| {seed} | {cell(hard)} | {cell(soft)} | {ratios[-1]:.3f} |", flush=True)
    print(f"\nsoft / hard on WikiText-2: {statistics.mean(ratios):.3f} (mean of {arguments.seeds})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "seeds", "labels"])
    parser.add_argument("pare", type=os.path.abspath)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, help="to train on; default 130000 (table, seeds), 320000 (labels)")
    parser.add_argument("--batch", type=int, default=2, help="windows of 512 tokens a step")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each on its share of the processor's cores")
    parser.add_argument("--rates", help="learning rates; default 3e-4,1e-3,3e-3 (table), 1e-3,1e-3 (labels)")
    parser.add_argument("--losses", help="default all (table); seeds: with the rate of each, such as hard_label=3e-4")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--soft", help="labels: the loss against the teacher, and its options; default forward_kl")
    parser.add_argument(
        "--select", choices=["loss", "perplexity", "kl", "last"], help="by what the validation that is kept is chosen"
    )
    parser.add_argument(
        "--recorded", action="store_true", help="labels: learn from what pare record has stored of the teacher"
    )
    arguments = parser.parse_args()
    if arguments.recorded and arguments.what != "labels":
        parser.error("--recorded: the table's losses include some that need the teacher itself")
    if arguments.soft and arguments.what != "labels":
        parser.error("--soft: the table has --losses")
    if arguments.what == "seeds" and not all("=" in item for item in (arguments.losses or "none").split(",")):
        parser.error("seeds: expected --losses with the rate of each, such as hard_label=3e-4,forward_kl=3e-4")
    if arguments.what == "seeds" and arguments.rates:
        parser.error("seeds: --losses names the rates")
    arguments.losses = arguments.losses or ",".join(LOSSES)
    arguments.soft = arguments.soft or "forward_kl"
    if arguments.soft.startswith("hard_label"):
        parser.error("--soft: expected a loss against the teacher")
    is_table = arguments.what != "labels"
    arguments.tokens = arguments.tokens or (130000 if is_table else 320000)
    arguments.rates = arguments.rates or ("3e-4,1e-3,3e-3" if is_table else "1e-3,1e-3")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    student = make_student(arguments)
    if arguments.recorded:
        record(arguments)
    print("perplexity of WikiText-2 / of the training texts held back (step kept)\n")
    {"table": table, "seeds": seeds, "labels": labels}[arguments.what](arguments, student)


if __name__ == "__main__":
    main()
