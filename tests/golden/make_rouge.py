"""Writes rouge.json: Rouge-L of rouge_score, and stems of the Porter stemmer that it uses.

Run with a Python that has rouge_score 0.1.2 (and with it nltk).
"""

import importlib.metadata
import json
import pathlib
import random
import re

from nltk.stem.porter import PorterStemmer
from rouge_score import rouge_scorer

DATA = pathlib.Path(__file__).parents[2] / "calibration_data"
SUFFIXES = """s es ies sses ied eed ed ing ated bling izing y ational tional enci anci izer bli alli entli eli ousli
 ization ation ator alism iveness fulness ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness al
 ance ence er ic able ible ant ement ment ent sion tion ou ism ate iti ous ive ize e ll""".split()
OWN = """sky skies dying lying tying news inning innings outing outings canning cannings howe proceed exceed succeed
 ies ties tied yyyy syzygy hopping hoping falling fizzed 1990s 2nds geology archaeology rationally abe oed""".split()


def texts():
    examples = [json.loads(line) for line in (DATA / "instructions.jsonl").read_text().splitlines()]
    outputs = [example["instances"][0]["output"] for example in examples]
    yield from zip(outputs[:-1], outputs[1:])
    # An answer with words lost, doubled and moved.
    generator = random.Random(5)
    for output in outputs[:20]:
        words = output.split(" ")
        changed = [word for word in words for _ in range(generator.choice([0, 1, 1, 1, 2]))]
        cut = generator.randrange(len(changed) + 1)
        yield " ".join(changed[cut:] + changed[:cut]), output
    yield from [
        ("", "a b"),
        ("a b", ""),
        ("", ""),
        ("?!", "a"),
        ("the cat", "The CAT!"),
        ("a", "a"),
        ("a b c d", "d c b a"),
        ("\u212aelvin \u0130stanbul", "kelvin i stanbul"),
        ("caf\u00e9 na\u00efve \u00c9", "caf na ve"),
        ("\u4f60\u597d", "\u4f60\u597d"),
        ("x_1 1,000 v2.0\n\tend", "x 1 1 000 v2 0 end"),
        ("They described the running dogs happily", "he describes a dog that runs happily"),
        ("police killed the gunman", "police kill the gunman"),
        ("the gunman kill police", "police killed the gunman"),
    ]


def main():
    cases = []
    scorers = {stem: rouge_scorer.RougeScorer(["rougeL"], use_stemmer=stem) for stem in (False, True)}
    for candidate, reference in texts():
        case = {"candidate": candidate, "reference": reference}
        for stem, scorer in scorers.items():
            score = scorer.score(target=reference, prediction=candidate)["rougeL"]
            case["stemmed" if stem else "plain"] = [float(x) for x in (score.precision, score.recall, score.fmeasure)]
        cases.append(case)
    text = (DATA / "instructions.jsonl").read_text() + (DATA / "books.txt").read_text()
    found = sorted(set(re.findall("[a-z0-9]{3,}", text.lower())))
    words = set(OWN)
    for suffix in SUFFIXES:  # a few words with each suffix, and made ones
        words.update([word for word in found if word.endswith(suffix)][:4])
        words.update(stem + suffix for stem in ("", "t", "tr", "bo", "hop", "relat", "abcdy"))
    stemmer = PorterStemmer()
    stems = {word: stemmer.stem(word) for word in sorted(words)}
    versions = {name: importlib.metadata.version(name) for name in ("rouge_score", "nltk")}
    path = pathlib.Path(__file__).with_name("rouge.json")
    golden = {"source": versions, "cases": cases, "stems": stems}
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
