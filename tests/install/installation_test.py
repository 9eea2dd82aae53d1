#!/usr/bin/env python3
"""What `cmake --install` puts into a prefix, after the prefix was moved elsewhere, as another user than who built.

usage: installation_test.py --build FOLDER [names of tests]
"""
import argparse
import functools
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAMILIES = ROOT / "tests/golden/families"
SYSTEM_FOLDERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
# The tolerance for logits of tests/runtime/engine/transformer_test.cpp, relative to the largest; a log-probability is a
# logit minus a logarithm of a sum of exponentials, which moves by as much at most.
LOGIT_TOLERANCE = 1e-4
NOBODY = 65534
build = temporary = prefix = None


def install(prefix, *words):
    """The list of what was installed; the one in the build folder stays that of whoever installed before."""
    manifests = {path: path.read_bytes() for path in build.glob("install_manifest*.txt")}
    installed = subprocess.run(
        ["cmake", "--install", str(build), "--prefix", str(prefix), *words], capture_output=True, text=True
    )
    if installed.returncode != 0:
        raise AssertionError(installed.stdout + installed.stderr)
    (written,) = (path for path in build.glob("install_manifest*.txt") if str(prefix) in path.read_text())
    manifest = written.read_text()
    written.unlink()
    for path, content in manifests.items():
        path.write_bytes(content)
    return manifest


def setUpModule():
    global temporary, prefix
    temporary = pathlib.Path(tempfile.mkdtemp(prefix="pare-installation-"))
    temporary.chmod(0o755)
    first = temporary / "first"
    old = os.umask(0o077)  # of an administrator who is careful
    try:
        install(first)
    finally:
        os.umask(old)
    prefix = temporary / "elsewhere/pare"
    prefix.parent.mkdir()
    first.rename(prefix)


def tearDownModule():
    shutil.rmtree(temporary, ignore_errors=True)


def programs():
    return [name for name in ("pare", "pare-runtime") if (prefix / "bin" / name).exists()]


def run(words, check=True, cwd=None, **variables):
    """As a user without rights in the build folder, where that can be had, and with an environment of its own."""
    words = [str(word) for word in words]
    if os.geteuid() == 0:
        words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent",
                   "OMP_WAIT_POLICY": "passive", **variables}
    result = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=cwd or "/")
    if check and result.returncode != 0:
        raise AssertionError(f"{words} ended with {result.returncode}: {result.stderr}{result.stdout}")
    return result


def folder_of_user(name):
    folder = temporary / name
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder


def read_npy(path):
    """(shape, values) of a version 1 .npy of int32, int64 or float32."""
    data = path.read_bytes()
    header_size = struct.unpack_from("<H", data, 8)[0]
    header = data[10:10 + header_size].decode()
    code = {"<i4": "i", "<i8": "q", "<f4": "f"}[re.search(r"'descr': '([^']+)'", header).group(1)]
    shape = tuple(int(n) for n in re.search(r"'shape': \(([^)]*)\)", header).group(1).split(",") if n.strip())
    return shape, struct.unpack_from(f"<{math.prod(shape)}{code}", data, 10 + header_size)


@functools.cache
def commands_of(program):
    """Command -> options without the dashes, as --help lists them."""
    top = run([prefix / "bin" / program, "--help"]).stdout
    names = re.findall(r"^  ([a-z]+) ", top.split("Commands:")[1].split("Options:")[0], re.MULTILINE)
    helps = {name: run([prefix / "bin" / program, name, "--help"]).stdout for name in names}
    return {name: re.findall(r"^  --([a-z0-9-]+)", text, re.MULTILINE) for name, text in helps.items()}


class Programs(unittest.TestCase):
    def test_print_their_version(self):
        for program in programs():
            self.assertRegex(run([prefix / "bin" / program, "--version"]).stdout, rf"^{program} \d")

    def test_load_no_library_but_the_systems_and_those_beside_them(self):
        for program in programs():
            loaded = run([prefix / "bin" / program, "--version"], LD_DEBUG="libs").stderr
            paths = [os.path.realpath(path) for path in re.findall(r"calling init: (/\S+)", loaded)]
            own = [path for path in paths if path.startswith(f"{prefix}/")]
            strange = [path for path in paths if path not in own and not path.startswith(SYSTEM_FOLDERS)]
            self.assertEqual(strange, [])
            self.assertTrue(any("/libc.so" in path for path in paths))  # LD_DEBUG was understood
            if program == "pare":
                self.assertIn(str(prefix / "lib/pare/libtorch_cpu.so"), own)
                self.assertFalse([path for path in own if re.search(r"/lib(stdc\+\+|gcc_s|c|m)\.so", path)])
            else:
                self.assertEqual(own, [])

    def test_have_one_openmp_runtime(self):
        for program in programs():
            subprocess.run(
                [sys.executable, ROOT / "tests/install/one_openmp_test.py", prefix / "bin" / program], check=True
            )

    def test_an_installed_recipe_runs_from_any_folder(self):
        if "pare" not in programs():
            self.skipTest("built without pare")
        folder = folder_of_user("run")
        recipe = prefix / "share/pare/recipes/stories260k-gptq-w4g32.yaml"
        run([prefix / "bin/pare", "run", recipe, "--quiet"], cwd=folder)
        made = folder / "out/stories260k-gptq-w4g32"
        verified = json.loads(run([prefix / "bin/pare-runtime", "verify", made, "--json"]).stdout)
        self.assertGreater(len(verified), 0)

    def test_all_that_is_installed_can_be_read_by_everybody(self):
        for path in [prefix, *prefix.rglob("*")]:
            mode = path.stat().st_mode
            self.assertTrue(mode & 0o004 and (not path.is_dir() or mode & 0o001), path)

    def test_no_text_leads_back_to_the_build(self):
        for path in (p for p in prefix.rglob("*") if p.is_file() and p.suffix in (".cmake", ".1", ".fish", "")):
            if path.parent.name != "bin":
                self.assertNotIn(str(build), path.read_text(errors="replace"), path)

    def test_licences_are_beside_them(self):
        for program in programs():
            folder = prefix / "share/doc" / program
            self.assertIn("Apache License", (folder / "LICENSE").read_text())
            self.assertIn("Apache-2.0", (folder / "copyright").read_text())
            self.assertTrue((folder / "licences/pcre2.txt").exists())
        # Each library that lies beside pare came with its package's licence, where it came in a Python package.
        package = pathlib.Path(os.environ.get("LIBTORCH", "/nonexistent")).parent
        if "pare" in programs() and list(package.glob("torch-*.dist-info")):
            self.assertTrue((prefix / "share/doc/pare/licences/torch/LICENSE").exists())
            for library in (prefix / "lib/pare").glob("libcu*"):
                self.assertTrue(list((prefix / "share/doc/pare/licences").glob("nvidia_cuda_*/License.txt")), library)


class Removal(unittest.TestCase):
    def test_removes_what_was_installed_and_nothing_else(self):
        place = temporary / "pare"  # a name like that of pare's own folders
        listed = temporary / "installed.txt"
        listed.write_text(install(place, "--component", "runtime"))
        before = [path for path in place.rglob("*") if path.is_file()]
        self.assertIn(place / "bin/pare-runtime", before)
        self.assertEqual(sorted(map(str, before)), sorted(listed.read_text().split("\n")))
        empty = place / "empty"
        empty.mkdir()
        others_empty = place / "share/man/man5"
        others_empty.mkdir()
        foreign = place / "share/man/man1/another.1"
        foreign.write_text("")
        words = ["cmake", f"-DPARE_INSTALLED={listed}", "-P", str(ROOT / "cmake/uninstall.cmake")]
        removed = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(removed.returncode, 0, removed.stderr)
        self.assertEqual([path for path in place.rglob("*") if path.is_file()], [foreign])
        self.assertFalse((place / "share/doc/pare-runtime").exists())
        self.assertTrue(empty.exists() and others_empty.exists() and (place / "bin").exists())


class ManualAndCompletions(unittest.TestCase):
    def test_manual_names_every_option_of_every_command(self):
        for program in programs():
            text = (prefix / f"share/man/man1/{program}.1").read_text().replace("\\-", "-").replace("\\fR", "")
            sections = dict(re.findall(r"^\.SS ([a-z]+)\b.*\n((?:(?!\.S[SH]).*\n)*)", text, re.MULTILINE))
            shared = text[text.index(".SH OPTIONS OF EVERY COMMAND"):]
            commands = commands_of(program)
            self.assertEqual(list(sections), list(commands))
            for command, options in commands.items():
                self.assertGreater(len(options), 2, command)  # --help was understood
                for option in options:
                    self.assertRegex(sections[command] + shared, rf"(?m)^\\fB--{option}( |$)", f"{program} {command}")

    def test_manual_is_formatted_without_warnings(self):
        if not shutil.which("man"):
            self.skipTest("there is no man")
        for program in programs():
            shown = subprocess.run(
                ["man", "--warnings", "-l", str(prefix / f"share/man/man1/{program}.1")],
                capture_output=True,
                text=True,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "MANWIDTH": "100"},
            )
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assertIn("EXIT STATUS", shown.stdout)

    def bash_completes(self, program, *words):
        function = "_" + program.replace("-", "_")
        script = (f"source '{prefix}/share/bash-completion/completions/{program}'; COMP_WORDS=(\"$@\"); "
                  f"COMP_CWORD=$(($# - 1)); {function}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        done = subprocess.run(["bash", "-c", script, "bash", program, *words], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_completes_commands_options_and_values(self):
        for program in programs():
            commands = commands_of(program)
            self.assertEqual(self.bash_completes(program, ""), [*commands, "--help", "--version", "--generate"])
            for command, options in commands.items():
                self.assertEqual(self.bash_completes(program, command, "--"), [f"--{option}" for option in options])
            self.assertEqual(self.bash_completes(program, "eval", "--protocol", "g"), ["gptq"])
            self.assertEqual(self.bash_completes(program, "eval", "--protocol", "=", "ll"), ["llama.cpp"])
            self.assertEqual(self.bash_completes(program, "eval", "--context", ""), [])
            self.assertEqual(self.bash_completes(program, "--generate", "m"), ["man"])
            if "recipes" in commands:
                self.assertEqual(self.bash_completes(program, "recipes", "gp"), ["gptq"])

    def test_zsh_and_fish_name_every_option(self):
        for program in programs():
            zsh = (prefix / f"share/zsh/site-functions/_{program}").read_text()
            fish = (prefix / f"share/fish/vendor_completions.d/{program}.fish").read_text()
            self.assertTrue(zsh.startswith(f"#compdef {program}\n"))
            for command, options in commands_of(program).items():
                part = zsh[zsh.index(f"\n        {command})\n"):].split(";;")[0]
                for option in options:
                    self.assertRegex(part, rf"'--{option}[=\[]", f"{program} {command}")
                    self.assertRegex(
                        fish, rf"(?m)^complete -c {program} -n '__fish_seen_subcommand_from {command}' -l {option} "
                    )

    def test_shells_can_read_them(self):
        for program in programs():
            files = {
                "bash": f"share/bash-completion/completions/{program}",
                "zsh": f"share/zsh/site-functions/_{program}",
                "fish": f"share/fish/vendor_completions.d/{program}.fish",
            }
            for shell, file in files.items():
                if shutil.which(shell):
                    read = subprocess.run([shell, "-n", prefix / file], capture_output=True, text=True)
                    self.assertEqual((read.returncode, read.stderr), (0, ""), shell)

    def test_fish_completes(self):
        if not shutil.which("fish"):
            self.skipTest("there is no fish")
        for program in programs():
            file = prefix / f"share/fish/vendor_completions.d/{program}.fish"
            done = subprocess.run(
                [
                    "fish",
                    "-N",
                    "-c",
                    f"source {file}; complete -C '{program} eval --proto'; "
                    f"complete -C '{program} eval --protocol g'",
                ],
                capture_output=True,
                text=True,
                env={"PATH": os.environ["PATH"], "HOME": str(temporary)},
            )
            self.assertEqual(
                [line.split("\t")[0] for line in done.stdout.splitlines()], ["--protocol", "gptq"], done.stderr
            )


class Library(unittest.TestCase):
    """The example of the documentation, built against the installation, which lies elsewhere."""

    @classmethod
    def setUpClass(cls):
        if not (prefix / "include/pare.h").exists():
            raise unittest.SkipTest("a build with CUDA has no library")
        folder = temporary / "example"
        cache = (build / "CMakeCache.txt").read_text()
        compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE).group(1)
        for words in (["cmake", "-S", str(prefix / "share/doc/pare-dev/examples"), "-B", str(folder), "-G", "Ninja",
                       f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={compiler}",
                       "-DCMAKE_CXX_FLAGS=-O1 -Wall -Wextra -Wshadow -Werror"],
                      ["cmake", "--build", str(folder)]):
            made = subprocess.run(words, capture_output=True, text=True)
            if made.returncode != 0:
                raise AssertionError(f"{words}: {made.stdout}{made.stderr}")
        cls.program = folder / "score_and_generate"

    def scores(self, *words):
        """(ids, scores) that the example prints, and the lines after them."""
        lines = run([self.program, *words]).stdout.splitlines()
        end = next(i for i, line in enumerate(lines) if line.startswith("perplexity "))
        pairs = [line.split() for line in lines[:end]]
        return [int(id) for id, _ in pairs], [float(score) for _, score in pairs], lines[end + 1:]

    def test_version_is_checked(self):
        version = re.search(
            r"^set\(PACKAGE_VERSION \"([\d.]+)\"",
            (prefix / "lib/cmake/pare/pareConfigVersion.cmake").read_text(),
            re.MULTILINE,
        ).group(1)
        for asked, is_found in ((version, True), ("99.0", False)):
            folder = temporary / f"asks-{asked}"
            folder.mkdir()
            (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.22)\nproject(asks LANGUAGES CXX)\n"
                                                   f"find_package(pare {asked} REQUIRED)\n")
            asks = subprocess.run(
                [
                    "cmake",
                    "-S",
                    str(folder),
                    "-B",
                    str(folder / "build"),
                    "-G",
                    "Ninja",
                    f"-DCMAKE_PREFIX_PATH={prefix}",
                ],
                capture_output=True,
                text=True,
            )
            self.assertEqual(asks.returncode == 0, is_found, asks.stderr)

    def test_header_needs_nothing_but_the_standard_library(self):
        text = (prefix / "include/pare.h").read_text()
        included = re.findall(r"^#include (\S+)", text, re.MULTILINE)
        self.assertTrue(included and all(re.fullmatch(r"<[a-z_]+>", name) for name in included), included)

    def test_scores_are_those_of_transformers(self):
        for family in ("llama_gqa_untied", "qwen3_moe_fused", "gemma3_local_global"):
            (num_windows, num_tokens), ids = read_npy(FAMILIES / family / "ids.npy")
            (_, _, vocabulary), logits = read_npy(FAMILIES / family / "logits.npy")
            tolerance = 2 * LOGIT_TOLERANCE * max(abs(x) for x in logits)
            for n in range(num_windows):
                window = ids[n * num_tokens:(n + 1) * num_tokens]
                found_ids, scores, _ = self.scores(self.copied(family), "--ids", *window)
                self.assertEqual(found_ids, list(window[1:]))
                for t, score in enumerate(scores):
                    row = logits[(n * num_tokens + t) * vocabulary:][:vocabulary]
                    expected = row[window[t + 1]] - math.log(math.fsum(math.exp(x) for x in row))
                    self.assertAlmostEqual(score, expected, delta=tolerance)

    def test_scores_are_those_of_eval(self):
        model, npy = self.copied("llama_gqa_untied"), self.copied("llama_gqa_untied") / "ids.npy"
        (_, num_tokens), ids = read_npy(FAMILIES / "llama_gqa_untied/ids.npy")
        evaluated = json.loads(
            run([prefix / "bin/pare-runtime", "eval", model, "--text", npy, "--windows", 1, "--json"]).stdout
        )
        _, scores, _ = self.scores(model, "--ids", *ids[:num_tokens])
        # One window is the same calls in both; what is printed has nine digits, which tell floats apart.
        self.assertAlmostEqual(-math.fsum(scores) / len(scores), evaluated["window_nll"][0], delta=1e-8)

    def test_text_is_that_of_generate(self):
        model = self.readable(ROOT / "calibration_data/stories260k", "stories260k")
        prompt = "Once upon a time"
        generated = json.loads(
            run(
                [
                    prefix / "bin/pare-runtime",
                    "generate",
                    model,
                    "--prompt",
                    prompt,
                    "--max-tokens",
                    32,
                    "--json",
                    "--quiet",
                ]
            ).stdout
        )
        *_, lines = self.scores(model, prompt)
        self.assertEqual("\n".join(lines), generated["text"])
        self.assertEqual(len(generated["ids"]), 32)

    def test_errors_are_exceptions_with_a_message(self):
        for words, part in ((["/nonexistent/model", "x"], "/nonexistent/model"),
                            ([self.copied("llama_gqa_untied"), "x"], "tokenizer.json"),
                            ([self.copied("llama_gqa_untied"), "--ids", 1], "from 2 to"),
                            ([self.copied("llama_gqa_untied"), "--ids", 1, 999999], "999999")):
            failed = run([self.program, *words], check=False)
            self.assertEqual((failed.returncode, failed.stdout), (1, ""))
            self.assertRegex(failed.stderr, rf"^score_and_generate: .*{part}.*\n$")

    def copied(self, family):
        return self.readable(FAMILIES / family, family)

    @staticmethod
    def readable(source, name):
        """A copy that the other user can read, wherever the sources lie."""
        copy = temporary / "models" / name
        if not copy.exists():
            shutil.copytree(source, copy)
        return copy


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    build = arguments.build.resolve()
    unittest.main(argv=sys.argv[:1] + rest)
