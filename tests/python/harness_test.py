#!/usr/bin/env python3
"""lm-evaluation-harness with the model `pare`: what it gives for its own tasks on local questions, beside what it gave
with transformers (tests/golden/tasks/expected.json, by make_tasks.py).

usage: harness_test.py --program build/pare-runtime [names of tests]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORIES = ROOT / "calibration_data/stories260k"
TASKS = ROOT / "tests/golden/tasks"
cache = tempfile.TemporaryDirectory(prefix="pare-harness-")  # of data sets
os.environ["HF_HOME"] = cache.name
os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(ROOT / "tests/golden"))

import lm_eval  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

import make_tasks  # noqa: E402
import pare.lm_eval  # noqa: E402

EXPECTED = json.loads((TASKS / "expected.json").read_text())
NOISE = 1e-4  # tests/runtime/evaluate/task_accuracy_test.cpp says why


def request(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


class Tasks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = pare.lm_eval.PareLM(STORIES, num_threads=1)

    def test_are_those_of_the_golden_values(self):
        self.assertEqual(lm_eval.__version__, EXPECTED["lm_eval"])

    def test_give_the_likelihoods_and_choices_of_transformers(self):
        for name, (file, _, shots) in make_tasks.TASKS.items():
            for count in (0, shots):
                with self.subTest(name, shots=count):
                    found = make_tasks.evaluate(
                        self.model, name, file, TASKS / f"{name}.jsonl", TASKS / f"{name}_examples.jsonl", count)
                    expected = EXPECTED[name][str(count)]
                    self.assertEqual(len(found["items"]), len(expected["items"]))
                    for one, other in zip(found["items"], expected["items"]):
                        for key in ("greedy", "acc", "acc_norm"):
                            self.assertEqual(one.get(key), other.get(key))
                        for value, golden in zip(one["loglikelihoods"], other["loglikelihoods"], strict=True):
                            self.assertAlmostEqual(value, golden, delta=NOISE)
                    for key in ("acc", "acc_norm", "acc_stderr"):
                        self.assertEqual(found["figures"].get(key), expected["figures"].get(key))

    def test_give_the_written_answers(self):
        for shots, expected in EXPECTED["gsm8k"].items():
            with self.subTest(shots=shots):
                questions, examples = TASKS / "gsm8k.jsonl", TASKS / "gsm8k_examples.jsonl"
                self.assertEqual(make_tasks.evaluate_written(self.model, questions, examples, int(shots)), expected)

    def test_give_the_likelihoods_of_documents(self):
        texts = [json.loads(line)["text"] for line in (TASKS / "texts.jsonl").read_text().splitlines()]
        found = self.model.loglikelihood_rolling([request("loglikelihood_rolling", text) for text in texts], True)
        for value, golden, text in zip(found, EXPECTED["texts"]["loglikelihoods"], texts, strict=True):
            # A sum over the tokens, of which a text has fewer than characters, of roundings of 1e-6 each.
            self.assertAlmostEqual(value, golden, delta=2e-6 * len(text))


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = pare.lm_eval.PareLM(str(STORIES), num_threads=1)

    def generate(self, *settings):
        requests = [request("generate_until", "Once upon a time", one) for one in settings]
        return self.model.generate_until(requests, disable_tqdm=True)

    def test_is_known_by_its_name(self):
        self.assertIs(get_model("pare"), pare.lm_eval.PareLM)
        made = get_model("pare").create_from_arg_string(
            f"pretrained={STORIES},max_length=100,kv_bits=8", {"batch_size": 4, "device": "cuda:0"})
        self.assertEqual(made.max_length, 100)
        self.assertEqual(self.model.max_length, 512)
        self.assertNotIn("/", self.model.tokenizer_name)

    def test_generates_by_the_settings_of_each_request(self):
        plain = self.model.model.generate_until(["Once upon a time"], 30)[0].text
        texts = self.generate({"until": ["Lily"], "max_gen_toks": 30}, {"max_gen_toks": 30}, {"until": "girl"},
                              {"until": ["Lily"], "max_gen_toks": 30})
        self.assertEqual(texts[0], plain.split("Lily")[0])
        self.assertEqual(texts[1], plain)
        self.assertEqual(texts[2], plain.split("girl")[0])
        self.assertEqual(texts[3], texts[0])
        drawn = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 30}
        first, second, other = self.generate(drawn, drawn, drawn | {"seed": 1})
        self.assertNotEqual(first, second)  # one request, repeated
        self.assertNotEqual(first, other)
        self.assertEqual(self.generate({"do_sample": False, "temperature": 1.0, "max_gen_toks": 30}), [plain])
        with self.assertRaisesRegex(ValueError, "num_beams.*temperature"):
            self.generate({"num_beams": 4})

    def test_refuses_templates_that_are_not_there(self):
        self.assertIsNone(self.model.chat_template(False))
        with self.assertRaisesRegex(ValueError, "no chat template"):
            self.model.chat_template(True)
        with self.assertRaisesRegex(ValueError, "'tool_use'"):
            self.model.chat_template("tool_use")

    def test_is_there_for_the_harness_own_command(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            harness = pathlib.Path(lm_eval.__file__).parent / "tasks/piqa/piqa.yaml"
            questions = TASKS / "piqa.jsonl"
            (folder / "local.yaml").write_text(
                f"include: {harness}\ntask: piqa_local\ndataset_path: json\ndataset_name: null\ndataset_kwargs:\n"
                f"  data_files: {{train: {questions}, validation: {questions}}}\n")
            words = ["run", "--model", "pare", "--model_args", f"pretrained={STORIES},num_threads=1", "--tasks",
                     "piqa_local", "--include_path", name, "--output_path", name]
            told = subprocess.run([sys.executable, "-m", "pare.lm_eval", *words], capture_output=True, text=True)
            self.assertEqual(told.returncode, 0, told.stderr)
            (results,) = folder.rglob("results*.json")
            found = json.loads(results.read_text())["results"]["piqa_local"]
        self.assertEqual(found["acc,none"], EXPECTED["piqa"]["0"]["figures"]["acc"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    _, others = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *others])
