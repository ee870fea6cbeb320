"""A made-up machine for the comparison: programs that replay recorded logs, a model with their metadata."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from click.testing import CliRunner, Result

from turbokv_eval.cli import main

FIXTURES = Path(__file__).parent / "fixtures" / "compare"

# Stands for llama-perplexity and llama-bench. `replies.json` beside it maps "role type" to what it does instead of
# replaying the recorded log: {"log": name} or {"text": ...}, "rc", "sleep", "short" (a reference file cut
# short), "once" (only the first time).
_PROGRAM = r"""#!{python}
import json, os, struct, sys, time
here, fixtures = os.path.dirname(os.path.abspath(__file__)), {fixtures!r}
args = sys.argv[1:]
value = lambda name: args[args.index(name) + 1] if name in args else None
if "--version" in args:
    sys.stderr.write("version: 0.5.0-dev (build 0, commit fake)\n")
    sys.exit(0)
if "--help" in args:
    sys.stdout.write(open(os.path.join(fixtures, "help.txt")).read())
    sys.exit(0)
k, v = value("-ctk"), value("-ctv")
label = k if k == v else k + "-" + v
own = "+layers" if "--kv-layers" in args else "@off" if value("--kv-condition") == "off" else ""
# what was recorded at a context of 512 tokens has no number in its name
at = "" if value("-c") in (None, "512") else "-" + value("-c")
if "jsonl" in args:
    role, file = "speed", "speed-%s-%s.log" % (value("-d"), label)
elif "--kl-divergence" in args:
    role, file = "quality", "quality-%s%s.log" % (label, at)
elif "--kl-divergence-base" in args:
    role, file = "reference", "reference%s.log" % at
elif "-f" in args:
    role, file = "plain", "plain-%s.log" % label
else:
    role, file = "load", "load-%s.log" % label
key = role + " " + label
with open(os.path.join(here, "calls.txt"), "a") as calls:
    calls.write(key + (" " + value("-d") if role == "speed" else "") + "\n")
again = open(os.path.join(here, "calls.txt")).read().count(key) > 1
reply = json.load(open(os.path.join(here, "replies.json"))).get(key, {{}})
if again and "once" in reply:
    reply = {{}}
if "sleep" in reply:
    open(os.path.join(here, "pid"), "w").write(str(os.getpid()))
    time.sleep(reply["sleep"])
if role == "reference" and "text" not in reply:
    ctx, chunks, words = int(value("-c")), 4, 7
    data = b"_logits_" + struct.pack("=Iii", ctx, words, chunks) + bytes(chunks * ctx * 4)
    data += bytes(chunks * (ctx - 1 - ctx // 2) * 12 * 2)
    open(value("--kl-divergence-base"), "wb").write(data[: len(data) // 2] if "short" in reply else data)
text = reply.get("text")
if text is None:
    path = os.path.join(fixtures, reply.get("log", file.replace(label, label + own)))
    text = open(path if os.path.exists(path) else os.path.join(fixtures, file)).read()
for line in text.splitlines(True):
    (sys.stdout if line.startswith("{{") else sys.stderr).write(line)
    sys.stdout.flush()
    sys.stderr.flush()
sys.exit(reply.get("rc", 0))
"""

# Stands for llama-kv-generate: logs what was recorded of the same cache, and answers by rule. The reference generates
# 0, 1, 2, ...; every other cache goes along, but turbo2 has another token from position 3 on, and finds no needle.
# replies.json as above: role "generate"; "miss": needles that are not found, "excess": tokens that do not fit at first.
_GENERATE = r"""#!{python}
import json, os, sys, time
here, fixtures = os.path.dirname(os.path.abspath(__file__)), {fixtures!r}
args = sys.argv[1:]
value = lambda name: args[args.index(name) + 1] if name in args else None
k, v = value("-ctk"), value("-ctv")
label = k if k == v else k + "-" + v
prompts = [json.loads(line) for line in open(value("-f"))]
what = "trajectory" if os.path.basename(value("-f")).startswith("trajectory") else "needle"
floor = label == "f32" and value("--kv-condition") == "on"
key = what + " " + ("noise floor" if floor else label)
with open(os.path.join(here, "calls.txt"), "a") as calls:
    calls.write(key + "\n")
again = open(os.path.join(here, "calls.txt")).read().count(key) > 1
reply = json.load(open(os.path.join(here, "replies.json"))).get(key, {{}})
if again and "once" in reply:
    reply = {{}}
time.sleep(reply.get("sleep", 0))
if "excess" in reply and not again:
    sys.exit("error: prompt '0/0' needs %d tokens of context, and there are %s: use a larger -c"
             % (int(value("-c")) + reply["excess"], value("-c")))
log = "quality-f32.log" if floor else "reference.log" if label == "f32" else "load-%s.log" % label
sys.stderr.write(reply.get("text", open(os.path.join(fixtures, log)).read()))
for number, prompt in enumerate(line for line in prompts if "id" in line):
    reference = prompt.get("reference", list(range(prompt.get("n_predict", 0))))
    asked = reference if isinstance(reference, list) else list(map(ord, reference))
    other = label == "turbo2" or number in reply.get("miss", [])
    tokens = [token if i < 3 or not other else token + 1 for i, token in enumerate(asked)]
    logprob = -2.0 if other else -0.1
    print(json.dumps({{"id": prompt["id"], "n_prompt": 40 + number, "n_reused": 0, "tokens": tokens, "text": "",
                      "reference": asked, "logprobs": [logprob] * len(asked)}}), flush=True)
sys.exit(reply.get("rc", 0))
"""


def recorded(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


class World:
    """bin: folder of the programs; model, text: what the recorded runs had, as far as it matters."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.out = root / "out"
        self.text = root / "text.txt"
        self.text.write_text("A sentence that says little. " * 500, encoding="utf-8")
        self.model = write_model(root / "model.gguf")
        for name in ("llama-perplexity", "llama-bench"):
            program = self.bin / name
            program.write_text(_PROGRAM.format(python=sys.executable, fixtures=str(FIXTURES)), encoding="utf-8")
            program.chmod(0o755)
        generate = self.bin / "llama-kv-generate"
        generate.write_text(_GENERATE.format(python=sys.executable, fixtures=str(FIXTURES)), encoding="utf-8")
        generate.chmod(0o755)
        self.reply()

    def reply(self, **replies: dict[str, Any]) -> None:
        """reply(quality_turbo2={"rc": 1}): what a program does when called for that role and type."""
        named = {key.replace("_", " ", 1): value for key, value in replies.items()}
        (self.bin / "replies.json").write_text(json.dumps(named), encoding="utf-8")

    @property
    def calls(self) -> list[str]:
        path = self.bin / "calls.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "compare.json").read_text(encoding="utf-8"))
        return found

    def args(self, *more: str) -> list[str]:
        """Arguments of `compare` for the types, context and depth that were recorded; without generation."""
        return self.generating("--no-trajectory", "--no-needle", *more)

    def generating(self, *more: str) -> list[str]:
        """The same with trajectory and needles."""
        fixed = ["compare", "-m", self.model, "-f", self.text, "--bin", self.bin, "--run", self.out, "--chunks", "4"]
        return [*map(str, fixed), "--types", "f16,q8_0/turbo3,turbo2", "--depths", "0", "--rounds", "2", *more]


def invoke(*args: str) -> Result:
    """The command line in this process."""
    return CliRunner().invoke(main, list(args))


def fails(result: Result, code: int, said: str) -> None:
    """The command ended with this code and one line that says this, and no traceback."""
    assert result.exit_code == code, result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, result.stderr
    assert re.search(said, errors[0]), errors[0]


def write_model(
    path: Path,
    *,
    arch: str = "llama",
    layers: int = 30,
    heads: int = 9,
    kv_heads: int = 3,
    dim: int = 64,
    vocab: int = 64,
) -> Path:
    """A GGUF with the metadata of a language model and one tensor."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(8192)
    writer.add_embedding_length(heads * dim if heads else dim)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_tensor("token_embd.weight", np.zeros((vocab, heads * dim or dim), dtype=np.float32))
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def whole(partial: dict[str, Any]) -> dict[str, Any]:
    """A valid document with the fields of `partial`, the others from a recorded comparison."""
    path = Path(__file__).parent / "data" / "compare-1.json"
    recorded_document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return _filled(partial, recorded_document)


def _filled(partial: Any, template: Any) -> Any:
    # a side of a speed that names its rounds is whole: none of them, no median
    if isinstance(partial, dict) and isinstance(template, dict) and "rounds" not in partial:
        return {**template, **{key: _filled(value, template.get(key)) for key, value in partial.items()}}
    if isinstance(partial, list) and isinstance(template, list) and template:
        return [_filled(value, template[0]) for value in partial]
    return partial
