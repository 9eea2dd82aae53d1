"""tests/run_batched.py finds every planted failure, and nothing else: run_batched_test.py PLANTED_TESTS."""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

RUNNER = pathlib.Path(__file__).resolve().parents[1] / "run_batched.py"
FAILED = {
    "Planted.Fails": "Failed",
    "Planted.FailsBesideOthers": "Failed beside others of its suite, and not alone",
    "All/Parameters.FailsForTwo/1": "Failed",
    "PlantedCrash.Aborts": "Failed",
    "PlantedEnd.LeavesAStatus": "Failed",
    "PlantedSleep.TakesTooLong": "Failed",
    "PlantedHang.HangsBesideOthers": "Failed beside others of its suite, and not alone",
    "PlantedCrashBesideOthers.Aborts": "Failed beside others of its suite, and not alone",
    "PlantedProcess.OutlivesItsTest": "Failed",
}


def names_of(program):
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    suite, names = "", []
    for line in listed.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            names.append(suite + word)
        elif word.endswith("."):
            suite = word
    return names


def processes_of(program):
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "exe").readlink() == pathlib.Path(program):
                found.append(entry.name)
    return found


def run(build, *options):
    done = subprocess.run([sys.executable, RUNNER, "--jobs", "2", *options, build], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def main(program):
    os.environ.pop("PARE_ISA", None)  # these tests may run as on an older processor themselves
    names = names_of(program)
    assert set(FAILED) < set(names), names
    with tempfile.TemporaryDirectory() as folder:
        # One test that is no GoogleTest, which the runner leaves to ctest.
        lines = ["add_test(Other.Fails false)", "add_test(Other.Passes true)"]
        for name in names:
            lines.append(f'add_test("{name}" "{program}" "--gtest_filter={name}" "--gtest_also_run_disabled_tests")')
            lines.append(f'set_tests_properties("{name}" PROPERTIES TIMEOUT 2 WORKING_DIRECTORY "{folder}")')
        (pathlib.Path(folder) / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")

        status, said = run(folder)
        found = dict(re.findall(r"^\t- (\S+) \((.*)\)$", said, re.MULTILINE))
        assert status == 1 and found == FAILED, said
        assert f"{len(names) - len(FAILED)} of {len(names)} tests passed in batches, 1 of them skipped" in said, said
        assert "Timeout: PlantedHang.HangsBesideOthers took over 2 s" in said, said
        assert "it left processes behind" in said and not processes_of(program), said
        assert said.count("as planted") >= 1 and "Other.Fails" in said, said

        lines.append(f'add_test("Planted.IsNotThere" "{program}" "--gtest_filter=Planted.IsNotThere" "--")')
        (pathlib.Path(folder) / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
        status, said = run(folder, "--include", "IsNotThere|Planted.Passes")
        assert status == 1 and "- Planted.IsNotThere (Failed)" in said, said
        os.environ["PARE_ISA"] = "avx2"
        status, said = run(folder, "--include", "IsNotThere|Planted.Passes")
        assert status == 0 and "1 of them skipped" in said, said
        del os.environ["PARE_ISA"]

        good = "^(" + "|".join(re.escape(name) for name in sorted(set(names) - set(FAILED)) + ["Other.Passes"]) + ")$"
        status, said = run(folder, "--include", good)
        assert status == 0 and "FAILED" not in said, said
        status, said = run(folder, "--include", "^Other\\.Fails$")
        assert status == 1, said
        status, said = run(folder, "--include", "NoSuchTest")
        assert status == 2 and "no test" in said, said
        status, said = run(folder, "--include", "(")
        assert status == 2 and "--include" in said, said


main(str(pathlib.Path(sys.argv[1]).resolve()))
