#!/usr/bin/env python3
"""Checks the Markdown pages: length of sentences and lines, and where links lead.

usage: check_prose.py [--statistics] [--ignore-limits] [PAGE.md ...]

Without pages, all of the repository: README.md and the like, and docs/*.md. Every page keeps to these limits:
  - a sentence has at most 30 words and at most one semicolon; code in backticks counts as one word
  - a line has at most 120 columns, unless it is a row of a table or part of a code block
  - a link to a file or to a heading leads to one that exists
README.md has a median of at most 15 words a sentence and at most 130 lines.
--statistics prints a table of words a sentence for each page. Prints what breaks a limit, a line each, and exits with
1.
"""
import argparse
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_WORDS = 30
MAX_COLUMNS = 120
README_MEDIAN = 15
README_LINES = 130

# Full stops that end no sentence.
ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|Fig|Sec|Eq|No|approx)\.")


def paragraphs(text):
    """(number of the first line, text) of each paragraph and list item; without code blocks, tables and headings."""
    found, current, first, in_code = [], [], 0, False

    def end():
        if current:
            found.append((first, " ".join(current)))
            current.clear()

    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            in_code = not in_code
            end()
            continue
        if in_code or stripped.startswith(("|", "#", "<!--")) or not stripped:
            end()
            continue
        if re.match(r"([-*+]|\d+\.)\s", stripped):
            end()
            stripped = re.sub(r"^([-*+]|\d+\.)\s+", "", stripped)
        if not current:
            first = number
        current.append(stripped)
    end()
    return found


def plain(text):
    """A paragraph as it is read: code in backticks is a word, with which a sentence may begin, a link is its text."""
    text = re.sub(r"`+[^`]*`+", "`code`", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = ABBREVIATIONS.sub(lambda match: match.group().replace(".", ""), text)
    return text.replace("**", "").replace("*", "")


def sentences(text):
    parts = re.split(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z0-9`])", plain(text))
    return [part for part in (part.strip() for part in parts) if part]


def num_words(sentence):
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found, in_code = set(), False
    for line in text.splitlines():
        if line.strip().startswith("```"):
            in_code = not in_code
        heading = None if in_code else re.match(r"#+\s+(.*)", line)
        if heading:
            words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower()
            found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return found


def broken_links(page, text):
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("```"):
            in_code = not in_code
        if in_code:
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            if not file.exists():
                yield number, f"the link leads to '{target}', which does not exist"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
                yield number, f"the link leads to '{target}', a heading that does not exist"


def problems(page, text):
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("```"):
            in_code = not in_code
        if len(line) > MAX_COLUMNS and not in_code and not line.lstrip().startswith("|"):
            yield number, f"the line has {len(line)} columns; at most {MAX_COLUMNS}"
    for number, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            words = num_words(sentence)
            if words > MAX_WORDS:
                yield number, f"a sentence of {words} words, at most {MAX_WORDS}: {sentence[:60]} ..."
            if sentence.count(";") > 1:
                yield number, f"a sentence with {sentence.count(';')} semicolons, at most 1: {sentence[:60]} ..."
    yield from broken_links(page, text)


def lengths(text):
    return [num_words(sentence) for _, paragraph in paragraphs(text) for sentence in sentences(paragraph)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    parser.add_argument("--statistics", action="store_true", help="print words a sentence for each page")
    parser.add_argument(
        "--ignore-limits", action="store_true", help="exit with 0 whatever breaks a limit, and print none of it"
    )
    arguments = parser.parse_args()
    pages = arguments.pages or sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("**/*.md"))
    if arguments.statistics:
        print(f"{'page':34} {'lines':>5} {'sentences':>9} {'median':>6} {'p90':>4} {'longest':>7}")
    num_problems = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        name = page.resolve().relative_to(ROOT) if page.resolve().is_relative_to(ROOT) else page
        found = list(problems(page.resolve(), text))
        words = sorted(lengths(text)) or [0]
        num_lines = text.count("\n")
        if str(name) == "README.md":
            if statistics.median(words) > README_MEDIAN:
                found.append((1, f"a median of {statistics.median(words):g} words a sentence; at most {README_MEDIAN}"))
            if num_lines > README_LINES:
                found.append((num_lines, f"the page has {num_lines} lines; at most {README_LINES}"))
        if arguments.statistics:
            p90 = words[min(len(words) - 1, int(0.9 * len(words)))]
            print(f"{str(name):34} {num_lines:5} {len(words):9} {statistics.median(words):6g} {p90:4} {words[-1]:7}")
        if not arguments.ignore_limits:
            for number, problem in sorted(found):
                print(f"{name}:{number}: {problem}")
            num_problems += len(found)
    return 1 if num_problems else 0


if __name__ == "__main__":
    sys.exit(main())
