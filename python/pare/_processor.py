"""Refuses processors without the instructions that the extension is compiled for, before it is loaded."""
import pathlib
import re

# As /proc/cpuinfo names what x86-64-v3 has beyond x86-64.
NEEDED = ("pni", "ssse3", "sse4_1", "sse4_2", "cx16", "popcnt", "lahf_lm", "movbe", "avx", "fma", "f16c", "avx2",
          "bmi1", "bmi2", "abm")


def check(cpuinfo: pathlib.Path = pathlib.Path("/proc/cpuinfo")) -> None:
    """Throws ImportError if a feature is missing. Where the system does not say, the extension is tried."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return
    if flags is None:
        return
    missing = [name for name in NEEDED if name not in flags.group(1).split()]
    if missing:
        raise ImportError(
            "pare needs a processor with x86-64-v3 (AVX2; Intel from 2013 on, AMD from 2015 on); "
            f"missing: {', '.join(missing)}"
        )
