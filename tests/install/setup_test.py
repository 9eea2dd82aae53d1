#!/usr/bin/env python3
"""What .ci/setup does before it installs Debian packages, with stand-ins for the programs that would install them."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Setup(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.programs = pathlib.Path(self.folder.name) / "bin"
        self.calls = pathlib.Path(self.folder.name) / "calls"
        self.programs.mkdir()
        self.put("dpkg-query", "exit 1")  # nothing is installed
        self.put("apt-get", f'echo "apt-get $*" >>{self.calls}; exit 9')
        self.put("sudo", f'echo "sudo $*" >>{self.calls}; exit 9')

    def put(self, name, text):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run_setup(self, user, goal="build", **variables):
        """Runs it as that user id, away from any terminal, with nothing to read."""
        self.put("id", f"echo {user}")
        environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": self.folder.name,
            "PARE_CACHE": f"{self.folder.name}/cache",
            **variables,
        }
        done = subprocess.run(
            [str(ROOT / ".ci/setup"), goal],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,
        )
        return done, self.calls.read_text() if self.calls.exists() else ""

    def test_asks_who_is_not_root(self):
        done, calls = self.run_setup(user=1000)
        self.assertEqual((done.returncode, calls), (1, ""), done.stderr)
        self.assertIn("libyaml-cpp-dev", done.stderr)
        self.assertIn("sudo apt-get install", done.stderr)
        self.assertIn("YES=1", done.stderr)

    def test_installs_for_who_says_yes(self):
        done, calls = self.run_setup(user=1000, YES="1")
        self.assertEqual((done.returncode, calls), (9, "sudo apt-get update -qq\n"), done.stderr)

    def test_installs_for_root(self):
        done, calls = self.run_setup(user=0)
        self.assertEqual((done.returncode, calls), (9, "apt-get update -qq\n"), done.stderr)

    def test_says_what_to_do_where_nothing_can_be_fetched(self):
        self.put("dpkg-query", "echo install ok installed")
        self.put("failing-pip", 'echo "pip: no network" >&2; exit 1')
        venv = f'mkdir -p "$3/bin"; ln -s {self.programs}/failing-pip "$3/bin/pip"'
        self.put("python3", f'[ "$2" = venv ] || exit 1; {venv}')
        done, _ = self.run_setup(user=0)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("pip: no network", done.stderr)
        self.assertIn("docs/install.md says how to build without a network", done.stderr)

    def test_refuses_another_goal(self):
        done, calls = self.run_setup(user=0, goal="tests")
        self.assertEqual((done.returncode, calls), (2, ""), done.stderr)
        self.assertIn("'tests' is no goal", done.stderr)


if __name__ == "__main__":
    unittest.main()
