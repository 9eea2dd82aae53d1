#!/usr/bin/env python3
"""The module pare, as a program calls it: what it computes, what it refuses, and what else goes on meanwhile.

usage: module_test.py --program build/pare-runtime [names of tests]
"""
import argparse
import copy
import json
import math
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy

import pare
from pare import _processor

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORIES = ROOT / "calibration_data/stories260k"
FAMILIES = ROOT / "tests/golden/families"
# Of float32 logits, relative to the largest: tests/runtime/engine/transformer_test.cpp.
LOGIT_TOLERANCE = 1e-4
PROGRAM = None


def run_program(*words):
    return subprocess.run([PROGRAM, *map(str, words)], check=True, capture_output=True, text=True).stdout


class Computing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = pare.load(STORIES, num_threads=2)

    def test_says_what_was_loaded(self):
        version = re.search(r"project\(pare VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(pare.__version__, version)
        facts = (self.model.vocabulary_size, self.model.max_tokens, self.model.context_length, self.model.num_threads)
        self.assertEqual(facts, (512, 512, 512, 2))
        self.assertEqual(self.model.path, STORIES)
        self.assertEqual(self.model.chat_template, "")
        self.assertIn("stories260k", repr(self.model))
        self.assertEqual(pare.load(STORIES, max_tokens=9).max_tokens, 9)
        self.assertEqual(pare.load(str(STORIES), max_tokens="context").max_tokens, 512)

    def test_logits_are_those_of_transformers(self):
        families = [path for path in sorted(FAMILIES.iterdir()) if (path / "ids.npy").exists()]
        self.assertGreater(len(families), 40)
        for family in families:
            with self.subTest(family=family.name):
                model = pare.load(family, num_threads=1)
                ids_NT = numpy.load(family / "ids.npy")
                expected = numpy.load(family / "logits.npy").reshape(*ids_NT.shape, -1)
                for ids, logits_TV in zip(ids_NT, expected, strict=True):
                    found = model.logits(ids)
                    self.assertEqual((found.shape, found.dtype), (logits_TV.shape, numpy.float32))
                    worst = numpy.abs(found - logits_TV).max() / numpy.abs(expected).max()
                    self.assertLess(worst, LOGIT_TOLERANCE)

    def test_scores_are_normalized_logits(self):
        ids = self.model.encode("Once upon a time, there was a girl.")
        logits_TV = self.model.logits(ids).astype(numpy.float64)
        sums = numpy.log(numpy.exp(logits_TV).sum(axis=1))
        expected = [logits_TV[t, ids[t + 1]] - sums[t] for t in range(len(ids) - 1)]
        # Logits below 30 with float32's rounding, 2e-6, and once more in the sum of exponentials.
        numpy.testing.assert_allclose(self.model.score(ids), expected, atol=1e-5)

    def test_ids_may_have_any_whole_type(self):
        ids = self.model.encode("Once upon a time")
        expected = self.model.logits(ids)
        for other in (tuple(ids), numpy.array(ids), numpy.array(ids, numpy.uint16), numpy.array(ids * 2)[::-1][::-1]):
            numpy.testing.assert_array_equal(self.model.logits(other)[: len(ids)], expected)

    def test_likelihoods_and_choices_are_those_of_the_program(self):
        questions = ROOT / "tests/golden/tasks/piqa.jsonl"
        told = json.loads(run_program("eval", STORIES, "--piqa", questions, "--json"))
        pairs = []
        for line in questions.read_text().splitlines():
            row = json.loads(line)
            pairs += [(f"Question: {row['goal']}\nAnswer:", " " + row[name]) for name in ("sol1", "sol2")]
        found = self.model.loglikelihoods(pairs)
        expected = [value for answer in told["answers"] for value in answer["loglikelihoods"]]
        self.assertEqual([one.sum for one in found], expected)
        # Alone, kernels for single rows round otherwise.
        alone = self.model.loglikelihood(*pairs[0])
        self.assertAlmostEqual(alone.sum, found[0].sum, delta=1e-4)
        self.assertEqual(alone[1:], found[0][1:])

    def test_likelihoods_are_sums_of_scores(self):
        text = "Once upon a time, there was a little girl."
        ids = self.model.encode(text)
        scores = self.model.score(ids)
        num = len(ids) - len(self.model.encode("Once upon a time,"))
        pair = self.model.loglikelihood("Once upon a time,", " there was a little girl.")
        self.assertEqual((pair.num_tokens, pair.num_cut), (num, 0))
        self.assertAlmostEqual(pair.sum, float(scores[-num:].sum()), delta=1e-4)
        (whole,) = self.model.text_loglikelihoods([text])
        # The token that begins texts stands before all that the tokenizer gives, which begins with it here.
        self.assertAlmostEqual(whole, float(self.model.score([ids[0], *ids]).sum()), delta=1e-4)
        cut = self.model.loglikelihood("hello " * 600, " time")
        self.assertGreater(cut.num_cut, 0)

    def test_texts_are_those_of_the_program(self):
        prompt = "Once upon a time"
        told = json.loads(run_program("generate", STORIES, "--prompt", prompt, "--max-tokens", 30, "--json"))
        heard = []
        found = self.model.generate(prompt, 30, on_text=heard.append)
        self.assertEqual("".join(heard), found.text)
        self.assertIn(found.text, told["text"])
        self.assertEqual(self.model.generate_ids(self.model.encode(prompt), 30), found.ids)
        drawn = [self.model.generate(prompt, 30, temperature=1.0, top_k=40, top_p=0.9, seed=n).text for n in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])

    def test_texts_end_before_stop_strings(self):
        whole = self.model.generate("Once upon a time", 60).text
        for stop in ("Lily", [" ball", "outside in"], "no such text", "ld her"):
            stops = [stop] if isinstance(stop, str) else stop
            expected = min((whole.split(one)[0] for one in stops), key=len)
            heard = []
            found = self.model.generate("Once upon a time", 60, stop=stop, on_text=heard.append)
            self.assertEqual((found.text, "".join(heard)), (expected, expected))
            self.assertEqual(found.reached_stop, any(one in whole for one in stops))
            (until,) = self.model.generate_until(["Once upon a time"], 60, stop=stop)
            self.assertEqual((until.text, until.reached_stop), (expected, found.reached_stop))

    def test_several_prompts_give_what_each_gives(self):
        prompts = ["Once upon a time", "The dog", "One day, Tom", "Lily and her mom"] * 5
        shares = []
        found = self.model.generate_until(prompts, 20, progress=shares.append)
        for prompt, text in zip(prompts, found, strict=True):
            self.assertEqual(text.ids, self.model.generate(prompt, 20).ids)
            self.assertEqual(text.text, self.model.decode(text.ids))
        self.assertEqual(shares, sorted(shares))

    def test_any_text_goes_to_ids_and_back(self):
        for text in ("héllo", "日本", "a\tb\n\nc", "😀", "a\0b"):
            self.assertEqual(self.model.decode(self.model.encode(text)), text)
        half = self.model.encode("😀")[:-1]
        self.assertIn("\ufffd", self.model.decode(half))

    def test_conversations_are_written_by_the_template(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for path in STORIES.iterdir():
                (folder / path.name).symlink_to(path)
            (folder / "chat_template.jinja").write_text(
                "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{{ mark }}{% endfor %}"
                "{% if add_generation_prompt %}[assistant]{% endif %}")
            model = pare.load(folder)
        turns = [{"role": "user", "content": "Zoë? "}, {"role": "assistant", "content": "Yes, "}]
        self.assertEqual(model.apply_chat_template(turns[:1]), "[user]Zoë?[assistant]")
        self.assertEqual(model.apply_chat_template(turns[:1], mark="!"), "[user]Zoë?![assistant]")
        go_on = {"add_generation_prompt": False, "continue_final_message": True}
        self.assertEqual(model.apply_chat_template(turns, **go_on), "[user]Zoë?[assistant]Yes,")
        with self.assertRaisesRegex(ValueError, "add_generation_prompt=False"):
            model.apply_chat_template(turns, continue_final_message=True)
        self.assertIn("add_generation_prompt", model.chat_template)


class Refusing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = pare.load(STORIES, num_threads=1)

    def refuse(self, kind, words, call):
        with self.assertRaisesRegex(kind, words):
            call()

    def test_models_that_cannot_be_loaded(self):
        self.refuse(RuntimeError, "/nonexistent", lambda: pare.load("/nonexistent"))
        self.refuse(RuntimeError, "no config.json", lambda: pare.load(ROOT / "docs"))
        encoder = ROOT / "tests/golden/encoders/bert_tiny"
        self.refuse(ValueError, "is an encoder", lambda: pare.load(encoder))
        self.refuse(ValueError, "num_threads -1", lambda: pare.load(STORIES, num_threads=-1))
        self.refuse(ValueError, "1 to 512", lambda: pare.load(STORIES, max_tokens=513))
        self.refuse(TypeError, "max_tokens", lambda: pare.load(STORIES, max_tokens="all"))
        self.refuse(ValueError, "32, 16 or 8", lambda: pare.load(STORIES, kv_bits=4))
        self.refuse(TypeError, "made by pare.load", lambda: pare.Model(None, STORIES))

    def test_ids(self):
        for kind, words, ids in [
            (TypeError, "float64", [1.5]), (TypeError, "found bool", [True]), (TypeError, "<U1", ["a"]),
            (ValueError, "2 dimensions", [[1, 2]]), (ValueError, "0 dimensions", 5), (ValueError, "0 tokens", []),
            (ValueError, "id -1", [-1]), (ValueError, "id 512", [5, 512]), (ValueError, "32 bits", [2**40]),
            (ValueError, "513 tokens: expected from 1 to 512", [1] * 513),
        ]:
            self.refuse(kind, words, lambda ids=ids: self.model.logits(ids))
        self.refuse(ValueError, "1 tokens: expected from 2", lambda: self.model.score([1]))
        self.refuse(ValueError, "99999", lambda: self.model.decode([99999]))

    def test_texts(self):
        self.refuse(UnicodeEncodeError, "surrogates", lambda: self.model.encode("\ud800"))
        self.refuse(TypeError, "found bytes", lambda: self.model.encode(b"x"))
        self.refuse(ValueError, "pair 1: .*no tokens", lambda: self.model.loglikelihood("a", ""))
        self.refuse(TypeError, r"pairs\[1\]\[1\].*found int", lambda: self.model.loglikelihoods([("a", "b"), ("a", 5)]))
        self.refuse(TypeError, "put it into a list", lambda: self.model.generate_until("Once"))
        self.refuse(ValueError, "no chat template", lambda: self.model.apply_chat_template([]))

    def test_settings_of_draws(self):
        for kind, words, settings in [
            (ValueError, "max_new_tokens 0", {"max_new_tokens": 0}), (ValueError, "512", {"max_new_tokens": 600}),
            (ValueError, "temperature", {"temperature": -1}), (ValueError, "temperature", {"temperature": math.nan}),
            (ValueError, "top_k -1", {"top_k": -1}), (ValueError, "top-p", {"top_p": 0}),
            (ValueError, "min-p", {"min_p": 2}), (ValueError, "repetition", {"repetition_penalty": 0}),
            (ValueError, "seed -1", {"seed": -1}), (ValueError, "stop string is empty", {"stop": ["a", ""]}),
        ]:
            for call in (lambda s: self.model.generate("a", **s), lambda s: self.model.generate_until(["a"], **s)):
                self.refuse(kind, words, lambda call=call, settings=settings: call(settings))

    def test_copies(self):
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            self.refuse(TypeError, "call pare.load in each process", lambda make=make: make(self.model))

    def test_processors_without_its_instructions(self):
        with tempfile.TemporaryDirectory() as name:
            cpuinfo = pathlib.Path(name) / "cpuinfo"
            cpuinfo.write_text("flags\t\t: " + " ".join(n for n in _processor.NEEDED if n != "avx2") + "\n")
            self.refuse(ImportError, "missing: avx2", lambda: _processor.check(cpuinfo))
            cpuinfo.write_text("flags\t\t: more " + " ".join(_processor.NEEDED) + "\n")
            _processor.check(cpuinfo)

    def test_use_by_its_own_callback_and_go_on(self):
        expected = self.model.generate("Once", 8).ids
        self.refuse(RuntimeError, "at work", lambda: self.model.generate("Once", 8, on_text=self.model.encode))
        self.refuse(ZeroDivisionError, "", lambda: self.model.generate("Once", 8, on_text=lambda _: 1 / 0))
        self.assertEqual(self.model.generate("Once", 8).ids, expected)


class Meanwhile(unittest.TestCase):
    def test_threads_share_models(self):
        models = [pare.load(STORIES, num_threads=n) for n in (1, 2)]
        expected = models[0].generate("One day", 40).text
        found = []

        def run(model):
            found.append(model.generate("One day", 40).text)

        threads = [threading.Thread(target=run, args=(model,)) for model in models * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [expected] * 8)

    def test_signals_end_calls_and_others_go_on(self):
        # Another thread sends the signal once the call works: it runs only if the call lets it. Each call would take
        # many seconds.
        model = pare.load(STORIES, num_threads=1)
        long = ["Once upon a time there was a little girl. " * 30] * 3000
        calls = {
            "loglikelihoods": lambda hear: model.loglikelihoods([(text, f" {n}") for n, text in enumerate(long)], hear),
            "text_loglikelihoods": lambda hear: model.text_loglikelihoods(long, hear),
            "generate_until": lambda hear: model.generate_until(long, 200, progress=hear),
        }
        for name, call in calls.items():
            with self.subTest(name):
                begun, shares = threading.Event(), []

                def send(begun=begun):
                    begun.wait()
                    os.kill(os.getpid(), signal.SIGINT)

                def hear(share, begun=begun, shares=shares):
                    shares.append(share)
                    begun.set()

                sender = threading.Thread(target=send, daemon=True)
                sender.start()
                with self.assertRaises(KeyboardInterrupt):
                    call(hear)
                sender.join()
                self.assertLess(shares[-1], 1.0)
        self.assertEqual(len(model.generate("Once", 5).ids), 5)

    def test_forked_processes_are_told_to_start_anew(self):
        model = pare.load(STORIES, num_threads=2)
        model.logits([1, 2, 3])
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                model.logits([1])
            except RuntimeError as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(reader, 1000).decode()
        self.assertIn("spawn", said)
        self.assertIn("load no model before", said)
        os.close(reader)
        os.close(writer)

    def test_a_refused_load_leaves_later_forks_alone(self):
        # A process of its own, in which no test has loaded a model.
        program = f"""
import os
import pare
for path, error in (("/no/such/model", Exception), ({str(STORIES)!r}, ValueError)):
    try:
        pare.load(path, max_tokens=10**6)
    except error:
        continue
    raise SystemExit("it is loaded")
child = os.fork()
if child == 0:
    try:
        len(pare.load({str(STORIES)!r}, num_threads=2).logits([1, 2])) == 2 and os._exit(7)
    finally:
        os._exit(1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 7)
"""
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual((said.returncode, said.stderr), (0, ""))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    arguments, others = parser.parse_known_args()
    PROGRAM = arguments.program
    unittest.main(argv=[sys.argv[0], *others])
