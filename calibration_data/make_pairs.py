#!/usr/bin/env python3
"""Writes wikitext2-pairs.tsv from wikitext2.txt: 360 pairs of sentences, a third each of neighbours in a paragraph
(third column 2), of one article but different paragraphs (1), and of different articles (0). The column says how the
pair was drawn, not what a person thinks of it.

    python3 calibration_data/make_pairs.py
"""
import pathlib
import random
import re

FOLDER = pathlib.Path(__file__).parent
NUM_EACH = 120


def clean(text):
    """WikiText's spaced tokens as written text: " @-@ " is a hyphen, punctuation joins the word before it."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([,.;:!?)\]%])", r"\1", text)
    text = re.sub(r"([(\[]) ", r"\1", text)
    text = re.sub(r'" ([^"]*) "', r'"\1"', text)
    text = re.sub(r" ('s|'t|'re|'ve|'d|'ll|'m|n't)\b", r"\1", text)
    return text.strip()


articles = []  # of paragraphs of sentences
for line in (FOLDER / "wikitext2.txt").read_text(encoding="utf-8").split("\n"):
    if re.fullmatch(r" = [^=].* = ", line):
        articles.append([])
    elif articles and line.strip() and not line.startswith(" ="):
        sentences = [clean(s) for s in re.split(r"(?<= [.!?]) (?=[A-Z\"])", line)]
        good = [s for s in sentences if 40 <= len(s) <= 240 and s[0].isupper() and s[-1] in ".!?" and "<unk>" not in s]
        articles[-1].append(good)
articles = [[p for p in article if len(p) >= 2] for article in articles]
articles = [article for article in articles if len(article) >= 2]

draw = random.Random(20260)
pairs = []
seen = set()


def add(first, second, score):
    if first == second or first in seen or second in seen:
        return False
    seen.update((first, second))
    pairs.append((first, second, score))
    return True


while sum(p[2] == 2 for p in pairs) < NUM_EACH:
    paragraph = draw.choice(draw.choice(articles))
    i = draw.randrange(len(paragraph) - 1)
    add(paragraph[i], paragraph[i + 1], 2)
while sum(p[2] == 1 for p in pairs) < NUM_EACH:
    first, second = draw.sample(draw.choice(articles), 2)
    add(draw.choice(first), draw.choice(second), 1)
while sum(p[2] == 0 for p in pairs) < NUM_EACH:
    first, second = draw.sample(articles, 2)
    add(draw.choice(draw.choice(first)), draw.choice(draw.choice(second)), 0)
text = "".join(f"{a}\t{b}\t{score}\n" for a, b, score in pairs)
(FOLDER / "wikitext2-pairs.tsv").write_text(text, encoding="utf-8")
print(len(pairs), len(articles), len(text))
