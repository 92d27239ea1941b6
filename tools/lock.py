"""Write requirements.lock from an installed environment: `python tools/lock.py PYTHON > requirements.lock`.

PYTHON is the interpreter whose packages are to be pinned. The lock is used as pip constraints, so it holds
one `name==version` a line and nothing that is true of one platform only:

- no local suffix (`torch==2.13.0`, not `2.13.0+cpu`), so that each machine takes the build that suits it;
- no package that exists on some platforms only (CUDA wheels, macOS and Windows helpers);
- not dtlab itself.
"""

import re
import subprocess
import sys

PLATFORM_ONLY = re.compile(
    r"^(nvidia[-_].*|cuda[-_].*|triton|appnope|pywin.*|colorama|win32.*|pyobjc.*)$", re.I
)
HEADER = (
    "# Exact versions, used as pip constraints: pip install -c requirements.lock -e '.[lab]'\n"
    "# Made on Python 3.11 by `make lock`. Do not edit by hand.\n"
)


def lock_lines(freeze: str) -> list[str]:
    """The lines of the lock for the text that `pip freeze --all` printed.

    >>> lock_lines("torch==2.13.0+cpu\\nnvidia-nccl-cu12==2.27\\n-e /home/me/dtlab\\nPyYAML==6.0.4\\n")
    ['pyyaml==6.0.4', 'torch==2.13.0']
    """
    lines = []
    for line in freeze.splitlines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s+;]+)(\+\S+)?", line.strip())
        if match is None:
            continue
        name = re.sub(r"[-_.]+", "-", match[1]).lower()
        if name != "dtlab" and not PLATFORM_ONLY.match(name):
            lines.append(f"{name}=={match[2]}")
    return sorted(lines)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/lock.py PYTHON > requirements.lock")
    freeze = subprocess.run(
        [sys.argv[1], "-m", "pip", "freeze", "--exclude-editable"], check=True, capture_output=True, text=True
    ).stdout
    print(HEADER + "\n".join(lock_lines(freeze)))


if __name__ == "__main__":
    main()
