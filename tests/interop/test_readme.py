"""The README's commands, word by word, in a machine of their own: a network and a process namespace."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ISOLATED = [
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--mount-proc",
    *([] if os.geteuid() == 0 else ["--map-root-user"]),
]


def block(marker: str, language: str = "sh", text: str = README) -> str:
    """The block that follows a marker, in the README or another document."""
    found = re.search(rf"{re.escape(marker)}.*?```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"no block after '{marker}'"
    return found[1]


def run(script: str, folder: Path) -> str:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*ISOLATED, "bash", "-e", "-c", f"ip link set lo up\n{script}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_nothing_to_a_delivered_message_and_through_a_kill(tmp_path: Path) -> None:
    assert shutil.which("penstock", path=str(Path(sys.executable).parent)), "run `make test`, which installs penstock"
    serve = "penstock serve > serve.log 2>&1 &\nuntil grep -q ready serve.log; do sleep 0.05; done\n"
    printed = run(serve + block("<!-- try it") + "echo ---\n" + block("<!-- kill it"), tmp_path)
    before, _, after = printed.partition("---\n")
    assert before.split() == ["21.5", "22.0"]
    assert [line for line in after.split() if line in ("21.5", "22.0")] == ["21.5", "22.0"]


def test_the_client(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(block("<!-- client", "python"))
    store = "penstock store --data data > store.log 2>&1 &\nuntil grep -q ready store.log; do sleep 0.05; done\n"
    printed = run(f"{store}python program.py", tmp_path)
    values = ("21.5", "21.6", "21.7")
    billed, read = [f"billed {value}" for value in values], [f"line/7/temp {value}" for value in values]
    assert printed.splitlines() == ["C", "True", *billed, *read]


def test_the_two_set_up_commands_are_the_ones_that_ci_runs() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "```sh\nmake serve\n```" in README
    assert "\nmake serve " in ci
    assert "```sh\nmake test\n```" in README
    assert "\nmake test\n" in ci
