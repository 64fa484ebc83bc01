"""The service as a deployment of Ray Serve, as the page on production describes it."""

import json
import os
import re

import pytest
from paths import ROOT
from processes import free_addresses, run

import encoder_zoo as ez

PRODUCTION = (ROOT / "docs" / "pages" / "topics" / "production.md").read_text("utf-8")
[RECIPE] = [c for c in re.findall(r"```python\n(.*?)```", PRODUCTION, re.S) if "import serve" in c]
TEXTS = [f"{word} film, part {i}." for i, word in enumerate(["nice", "bad", "slow", "loved"] * 5)]

# Kills one of two replicas while 16 clients ask, and prints what they were answered.
UNDER_LOAD = """
import collections, json, sys, threading, time

import httpx, ray, service
from ray import serve

texts, port = json.loads(sys.argv[1]), int(sys.argv[2])
ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"port": port})
serve.run(service.app)
statuses, answers, end = collections.Counter(), [], threading.Event()


def post(client, text):
    while True:  # a client tries again after an error of the connection or of the server
        try:
            response = client.post("/classify", json={"texts": [text]})
            statuses[str(response.status_code)] += 1
            if response.status_code < 500:
                return response.json()["answers"][0]
        except httpx.TransportError as error:
            statuses[type(error).__name__] += 1
        time.sleep(0.2)


def ask():
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while not end.is_set():
            answers.extend((text, post(client, text)) for text in texts)


def replicas():
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor for actor in named if "Service#" in actor["name"]]


def is_running(count):
    deployment = serve.status().applications["default"].deployments["Service"]
    return deployment.replica_states == {"RUNNING": count}


clients = [threading.Thread(target=ask) for _ in range(16)]
for client in clients:
    client.start()
while len(answers) < 200:
    time.sleep(0.1)
before = replicas()
ray.kill(ray.get_actor(**before[0]))
asked = len(answers)
deadline = time.monotonic() + 300
while len(answers) < asked + 200 or before[0] in replicas() or not is_running(2):
    assert time.monotonic() < deadline, serve.status()
    time.sleep(0.1)
end.set()
for client in clients:
    client.join()
print(json.dumps({"before": before, "after": replicas(), "answers": answers, **statuses}))
serve.shutdown()
"""


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # of Keras's export
def test_all_requests_are_answered_while_a_replica_is_killed(tmp_path):
    pytest.importorskip("ray.serve", reason="`pip install 'ray[serve]'`")
    pytest.importorskip("onnxruntime")
    task = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
    task.export(tmp_path / "reviews", format="onnx")
    (tmp_path / "service.py").write_text(RECIPE.replace("/models/", f"{tmp_path}/"))
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    [address] = free_addresses(1)
    arguments = [json.dumps(TEXTS), address.split(":")[1]]
    printed = run(UNDER_LOAD, *arguments, PYTHONPATH=paths, RAY_USAGE_STATS_ENABLED="0")
    # Ray prints messages before and after.
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    assert len(found["before"]) == len(found["after"]) == 2
    assert found["before"][0] not in found["after"]
    expected = dict(zip(TEXTS, task.classify(TEXTS), strict=True))
    assert len(found["answers"]) == found["200"]
    for text, answer in found["answers"]:
        assert answer["label"] == expected[text]["label"]
        assert answer["score"] == pytest.approx(expected[text]["score"], abs=1e-5)
