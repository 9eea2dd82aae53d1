"""Reads an HTML page with Python's own parser and checks that it is well formed and needs nothing else: every element
is closed, ids are unique and resolve, nothing is fetched, and only our own script stands in it. Prints JSON: the
tables' rows and the text outside of tables.

usage: check_page.py PAGE [BROWSER]     with a browser its tables are also sorted, and the page must not be wider than
                                        the window at 400 and 1200 pixels
"""
import html.parser
import json
import pathlib
import re
import subprocess
import sys
import tempfile

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.refs, self.scripts = [], [], [], []
        self.tables, self.words, self.pictures = [], [], 0

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes, closed=True)

    def handle_starttag(self, tag, attributes, closed=False):
        attributes = dict(attributes)
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            assert name not in ("src", "href", "srcset", "action", "style", "xlink:href"), f"{tag} {name}={value}"
        if "id" in attributes:
            self.ids.append(attributes["id"])
        self.refs += attributes.get("aria-labelledby", "").split()
        if tag == "svg":
            self.pictures += 1
            assert attributes["role"] == "img" and attributes["aria-labelledby"], attributes
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "script":
            self.scripts.append("")
        if not closed and tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts[-1] += data
        elif "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        elif "style" not in self.open:
            self.words.append(data)


def in_browser(browser, path):
    source = path.read_text(encoding="utf-8")
    probe = (
        "<script>const b=document.querySelector('th.n button')||document.querySelector('th button');b.click();"
        "document.body.dataset.sorted=b.parentNode.getAttribute('aria-sort');"
        "document.body.dataset.wide=document.documentElement.scrollWidth-innerWidth;</script></body>"
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "page.html"
        copy.write_text(source.replace("</body>", probe), encoding="utf-8")
        for width in (400, 1200):
            dom = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
                 f"--window-size={width},900", "--dump-dom", copy.as_uri()],
                check=True, capture_output=True, text=True, timeout=120).stdout
            assert 'data-sorted="ascending"' in dom, "the table was not sorted"
            assert int(re.search(r'data-wide="(-?\d+)"', dom).group(1)) <= 0, f"wider than {width} pixels"


def main():
    path = pathlib.Path(sys.argv[1])
    source = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(source)
    page.close()
    assert not page.open, page.open
    assert source.startswith("<!DOCTYPE html>")
    assert len(set(page.ids)) == len(page.ids), "an id twice"
    assert set(page.refs) <= set(page.ids), set(page.refs) - set(page.ids)
    assert len(page.scripts) == 1 and page.scripts[0].strip().startswith("for(const t of"), page.scripts
    addresses = set(re.findall(r"[a-z]+://[^\"' ]+", source)) - {"http://www.w3.org/2000/svg"}
    assert not addresses, addresses
    for word in ("NaN", "nan\"", "inf\"", "undefined"):
        assert word not in source, word
    if len(sys.argv) > 2:
        in_browser(sys.argv[2], path)
    json.dump({"tables": page.tables, "text": "".join(page.words), "pictures": page.pictures}, sys.stdout)


if __name__ == "__main__":
    main()
