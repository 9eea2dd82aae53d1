"""Writes tests/golden/tasks: questions shaped as public data sets, and what lm-evaluation-harness makes of them.

    pip install "lm_eval[hf]==0.4.13" torch==2.11.0 transformers==5.17.0
    python tests/golden/make_tasks.py calibration_data/stories260k tests/golden/tasks

The questions are invented here, out of words drawn at random. The harness reads its own task files, in which only the
data set is another one.
"""
import json
import os
import pathlib
import random
import sys

os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
import lm_eval  # noqa: E402
import lm_eval.evaluator  # noqa: E402
import lm_eval.api.metrics  # noqa: E402
from lm_eval.filters.extraction import RegexFilter  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from lm_eval.tasks._yaml_loader import load_yaml  # noqa: E402

NUM_QUESTIONS, NUM_EXAMPLES = 12, 30
TASK_MANAGER = TaskManager(include_defaults=False)  # whose index would take seconds, and is not read
RNG = random.Random(7)
NAMES = ["Lily", "Tom", "Tim", "Mia", "Ben", "Sue", "Zoë", "Max"]
THINGS = ["a red ball", "the big dog", "a small bird", "the old tree", "a blue car", "some cake", "the toy box"]
PLACES = ["in the park", "at home", "by the lake", "under the bed", "in the garden", "on the hill"]
ENDS = ["was very happy", "started to cry", "ran away", "said \"thank you\"", "went to sleep", "smiled  at his mom"]


def pick(words, count):
    return RNG.sample(words, count)


def piqa():
    name, thing, place = pick(NAMES, 1)[0], pick(THINGS, 1)[0], pick(PLACES, 2)
    return {"goal": f"How does {name} find {thing}?", "sol1": f"Look {place[0]}.",
            "sol2": f"Sit down {place[1]} and wait until it comes back. ", "label": RNG.randrange(2)}


def hellaswag():
    name, thing = pick(NAMES, 1)[0], pick(THINGS, 2)
    ends = pick(ENDS, 4)
    return {"ind": RNG.randrange(100), "activity_label": "Playing outside",
            "ctx_a": f"[header] How to play [title] One day, {name} saw {thing[0]}.",
            "ctx_b": f"then {name} and {thing[1]}",
            "ctx": "not read",
            "endings": [f" {ends[0]}.", f"{ends[1]}. [step] They [sub]  played.", f"{ends[2]} [x", ends[3]],
            "label": str(RNG.randrange(4))}


def winogrande():
    one, two = pick(NAMES, 2)
    return {"sentence": f"{one} gave {two} {pick(THINGS, 1)[0]} because _ {pick(ENDS, 1)[0]} {pick(PLACES, 1)[0]}. ",
            "option1": one, "option2": two, "answer": str(RNG.randrange(2) + 1)}


def labelled(count, labels):
    return {"text": [f"{thing} {place}" for thing, place in zip(pick(THINGS, count), pick(PLACES, count))],
            "label": labels[:count]}


def arc():
    labels = RNG.choice(["ABCDE", "12345"])
    count = RNG.choice([3, 4, 5])
    return {"id": str(RNG.randrange(1000)), "question": f"What did {pick(NAMES, 1)[0]} see {pick(PLACES, 1)[0]}?",
            "choices": labelled(count, list(labels)), "answerKey": labels[RNG.randrange(count)]}


def openbookqa():
    return {"id": str(RNG.randrange(1000)), "question_stem": f"{pick(NAMES, 1)[0]} likes to play with ",
            "choices": labelled(4, list("ABCD")), "answerKey": RNG.choice("ABCD")}


def boolq():
    name, thing, place = pick(NAMES, 1)[0], pick(THINGS, 1)[0], pick(PLACES, 1)[0]
    return {"question": f"did {name} find {thing}", "passage": f"{name} went out. {name} was {place} and saw {thing}.",
            "idx": RNG.randrange(1000), "label": RNG.randrange(2)}


def mmlu():
    thing = pick(THINGS, 4)
    return {"question": f"\n What does {pick(NAMES, 1)[0]} want?  ", "subject": "toys_and_games", "choices": thing,
            "answer": RNG.randrange(4)}


def lambada():
    name, thing, place = pick(NAMES, 1)[0], pick(THINGS, 1)[0], pick(PLACES, 1)[0]
    return {"text": f"Once upon a time, there was a little girl named {name}. She loved to play {place} with {thing}. "
                    f"One day, {name}\nsaw {RNG.choice(['her mom', 'a big dog', 'the park', 'outside.'])}"}


TASKS = {"piqa": ("piqa/piqa.yaml", piqa, 2), "hellaswag": ("hellaswag/hellaswag.yaml", hellaswag, 3),
         "winogrande": ("winogrande/default.yaml", winogrande, 7), "arc": ("arc/arc_easy.yaml", arc, 1),
         "openbookqa": ("openbookqa/openbookqa.yaml", openbookqa, 6),
         "boolq": ("super_glue/boolq/default.yaml", boolq, 2),
         "mmlu": ("mmlu/default/mmlu_anatomy.yaml", mmlu, 5), "lambada": ("lambada/lambada_openai.yaml", lambada, 1)}


def gsm8k():
    name, count, more = pick(NAMES, 1)[0], RNG.randrange(2, 9), RNG.randrange(1, 9)
    return {"question": f"{name} had {count} balls. Then {name} got {more} more. How many balls did {name} have?",
            "answer": f"{name} had {count} + {more} = {count + more} balls.\n#### {count + more}"}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def evaluate(model, name, file, questions, examples, shots):
    config = load_yaml(pathlib.Path(lm_eval.__file__).parent / "tasks" / file)
    splits = {"train": str(examples), "dev": str(examples), "validation": str(questions), "test": str(questions)}
    config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": splits}, "task": name}
    if config.get("test_split"):
        config["test_split"] = "test"
    if name == "lambada":  # it has no other set, and draws from its questions
        config |= {"training_split": "train", "fewshot_split": "train"}
    if name == "mmlu":  # the description names the subject
        config["description"] = config["description"].replace("anatomy", "toys and games")
    result = lm_eval.evaluator.simple_evaluate(model=model, tasks=[config], num_fewshot=shots, bootstrap_iters=0,
                                               task_manager=TASK_MANAGER)
    figures = {key.split(",")[0]: value for key, value in result["results"][name].items() if isinstance(value, float)}
    if "perplexity" not in figures:  # by their closed form
        figures |= {f"{key}_stderr": lm_eval.api.metrics.mean_stderr([s[key] for s in result["samples"][name]])
                    for key in list(figures) if key in ("acc", "acc_norm")}
    items = []
    for sample in sorted(result["samples"][name], key=lambda sample: sample["doc_id"]):
        scores = [response[0] for response in sample["resps"]]
        items.append({"loglikelihoods": [score[0] for score in scores], "greedy": [score[1] for score in scores],
                      "acc": sample["acc"]} | ({"acc_norm": sample["acc_norm"]} if "acc_norm" in sample else {}))
    return {"figures": figures, "items": items}


def evaluate_written(model, questions, examples, shots):
    config = load_yaml(pathlib.Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k.yaml")
    splits = {"train": str(examples), "test": str(questions)}
    config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": splits}}
    result = lm_eval.evaluator.simple_evaluate(model=model, tasks=[config], num_fewshot=shots, bootstrap_iters=0,
                                               task_manager=TASK_MANAGER)
    items = {}
    for sample in result["samples"]["gsm8k"]:
        item = items.setdefault(sample["doc_id"], {"text": sample["resps"][0][0]})
        name = "strict" if sample["filter"] == "strict-match" else "flexible"
        item |= {name: sample["filtered_resps"][0], f"{name}_is_right": bool(sample["exact_match"] == 1.0)}
    figures = {key: value for key, value in result["results"]["gsm8k"].items() if isinstance(value, float)}
    for name in ("strict", "flexible"):
        right = [float(items[n][f"{name}_is_right"]) for n in sorted(items)]
        figures[f"{name}_stderr"] = lm_eval.api.metrics.mean_stderr(right)
    return {"figures": figures, "items": [items[n] for n in sorted(items)]}


def read_numbers():
    """What the harness' filters and its exact match make of texts, most of which are made at random."""
    strict, flexible = RegexFilter(), RegexFilter("(-?[$0-9.,]{2,})|(-?[0-9]+)", -1)
    ignored = [",", "\\$", "(?s).*#### ", "\\.$"]
    texts = ["", "none", "#### ", "#### -", "#### 5", "a 7\n#### 1,234.50. So #### 9", "$1,000.", "-5 or 6-7",
             "####5"]
    pieces = ["#### ", "####", "-", "$", ".", ",", "7", "42", " ", "\n", "x", "Ä"]
    texts += ["".join(RNG.choice(pieces) for _ in range(RNG.randrange(1, 12))) for _ in range(300)]
    rows = []
    for text in texts:
        row = {"text": text, "strict": strict.apply([[text]], [{}])[0][0],
               "flexible": flexible.apply([[text]], [{}])[0][0], "right": RNG.choice(texts)}
        pairs = [(found, right) for found in (row["strict"], row["flexible"], text)
                 for right in (row["right"], f"so\n#### {found}.")]
        matches = [lm_eval.api.metrics.exact_match_hf_evaluate([found], [right], ignored, ignore_case=True)
                   for found, right in pairs]
        rows.append(row | {"matches": [bool(match["exact_match"]) for match in matches]})
    return rows


def page():
    """A page as WikiText writes it: tokens apart, and what its detokenizer puts right. The longest need two windows."""
    lines = [" \n = Toys = \n ", " \n = = The park = = \n "]
    for _ in range(RNG.randrange(2, 14)):
        name, thing, place = pick(NAMES, 1)[0], pick(THINGS, 1)[0], pick(PLACES, 1)[0]
        lines.append(RNG.choice([
            f" {name} 's mom ( and  her dog ) saw {thing} {place} , and it was 2 @.@ 5 @-@ fold . \n ",
            f" The boys ' {thing} cost 1 @,@ 000 : \" a lot \" ; {name} said so ! \n ",
            f" Was it ' old ' or [ new ] ? {{ N }} is N in {name} / ' 3 / at 5 ° C ; see /' 4/ ( none . \n "]))
    return "".join(lines)


def evaluate_documents(model, name, config, path):
    splits = {"train": str(path), "validation": str(path), "test": str(path)}
    config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": splits}, "task": name}
    result = lm_eval.evaluator.simple_evaluate(model=model, tasks=[config], bootstrap_iters=0,
                                               task_manager=TASK_MANAGER)
    samples = sorted(result["samples"][name], key=lambda sample: sample["doc_id"])
    figures = {key.split(",")[0]: value for key, value in result["results"][name].items() if isinstance(value, float)}
    return {"figures": figures, "loglikelihoods": [sample["filtered_resps"][0] for sample in samples]}


def documents(model, folder, expected):
    pages, texts = folder / "pages.jsonl", folder / "texts.jsonl"
    rows = [page() for _ in range(8)]
    write_lines(pages, [{"page": row} for row in rows])
    write_lines(texts, [{"text": row} for row in rows[:4]])
    harness = pathlib.Path(lm_eval.__file__).parent / "tasks/wikitext/wikitext.yaml"
    measures = [{"metric": metric} for metric in ("word_perplexity", "byte_perplexity", "bits_per_byte")]
    plain = {"output_type": "loglikelihood_rolling", "test_split": "test", "doc_to_text": "",
             "doc_to_target": "{{text}}", "metric_list": measures}
    expected["pages"] = evaluate_documents(model, "pages", load_yaml(harness), pages)
    expected["pages"]["plain"] = [load_yaml(harness)["doc_to_target"]({"page": row}) for row in rows]
    expected["texts"] = evaluate_documents(model, "texts", plain, texts)


def main():
    source, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    import torch
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(1)
    model = HFLM(pretrained=source, dtype="float32", device="cpu", batch_size=1)
    expected = {"lm_eval": lm_eval.__version__}
    for name, (file, make, shots) in TASKS.items():
        questions, examples = folder / f"{name}.jsonl", folder / f"{name}_examples.jsonl"
        write_lines(questions, [make() for _ in range(NUM_QUESTIONS)])
        write_lines(examples, [make() for _ in range(NUM_EXAMPLES)])
        expected[name] = {str(n): evaluate(model, name, file, questions, examples, n) for n in (0, shots)}
    documents(model, folder, expected)
    questions, examples = folder / "gsm8k.jsonl", folder / "gsm8k_examples.jsonl"
    write_lines(questions, [gsm8k() for _ in range(NUM_QUESTIONS)])
    write_lines(examples, [gsm8k() for _ in range(NUM_EXAMPLES)])
    expected["gsm8k"] = {str(n): evaluate_written(model, questions, examples, n) for n in (0, 5)}
    expected["numbers"] = read_numbers()
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
