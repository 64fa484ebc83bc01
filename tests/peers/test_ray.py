"""Ray Data spreads answers over workers, which open the task once each."""

import os
import subprocess
import sys

import pytest
from paths import ROOT, TESTS

pytest.importorskip("ray")
pytestmark = pytest.mark.peers

SCRIPT = """
import os, pathlib, sys, time
import ray
import encoder_zoo as ez


def opened():
    from test_many_texts import Reversing

    with open(pathlib.Path(FOLDER) / str(os.getpid()), "a") as file:
        file.write("opened\\n")
    while len(os.listdir(FOLDER)) < 2:  # one could be done before the other has begun
        time.sleep(0.1)
    return Reversing()


FOLDER = sys.argv[1]
rows = [{"row": i, "text": f"text {i}" if i % 7 else None} for i in range(400)]
ray.init(num_cpus=3, include_dashboard=False)
answers = ray.data.from_items(rows, override_num_blocks=8).map_batches(
    ez.BatchAnswers,
    fn_constructor_args=[opened],
    compute=ray.data.ActorPoolStrategy(size=2),
    batch_size=25,
)
found = sorted(answers.take_all(), key=lambda row: row["row"])
assert [row["row"] for row in found] == list(range(400))
assert [row["label"] for row in found] == [
    row["text"] and row["text"][::-1] for row in rows
], found[:9]
"""


def run(*command):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS / "extras" / "bulk"))),
        },
        timeout=1800,  # for one that hangs
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_two_workers_open_the_task_once_each_and_lose_no_row(tmp_path):
    run("-c", SCRIPT, tmp_path)
    opened = list(tmp_path.iterdir())
    assert len(opened) == 2 and all(path.read_text() == "opened\n" for path in opened)


def test_the_guide_gives_the_answers_of_one_process():
    output = run(ROOT / "guides" / "many_texts_on_ray.py")
    assert "3000 of 3000 rows, without duplicates: True" in output
    assert "labels as in one process: True" in output
