"""The parsers read recorded output of the real programs, digit for digit, and notice what is missing or wrong in it."""

import re
from pathlib import Path

import pytest
from compare_world import recorded, write_model

from turbokv_eval.errors import BadInput, CheckFailed
from turbokv_eval.models.gguf_info import read_model
from turbokv_eval.models.types import KVConfig, is_type, parse_types
from turbokv_eval.programs import bench, kv_log, perplexity

F16 = KVConfig("f16", "f16")
KNOWN = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "turbo2", "turbo3", "turbo4"]


def test_known_types_are_read_from_wrapped_help() -> None:
    assert perplexity.parse_known_types(recorded("help.txt")) == KNOWN


def test_help_without_types_is_refused() -> None:
    with pytest.raises(CheckFailed, match="lists no cache types"):
        perplexity.parse_known_types("usage: something else")


def test_types_and_pairs_keep_their_order() -> None:
    assert parse_types("f16, q8_0/turbo3,turbo2", KNOWN) == [
        F16,
        KVConfig("q8_0", "turbo3"),
        KVConfig("turbo2", "turbo2"),
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("f16,turbo5", "unknown cache type 'turbo5'.*turbo2, turbo3, turbo4"),
        ("f16,", "an empty cache type"),
        ("/f16", "an empty cache type"),
        ("f16/", "an empty cache type"),
        ("f16/q8_0/q4_0", "unknown cache type 'q8_0/q4_0'"),
        ("f16,turbo3,f16/f16", "f16 is listed twice"),
        ("turbo3@of", "behind @ stands auto, on, off or a file, and no file 'of'"),
    ],
)
def test_bad_types(spec: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_types(spec, KNOWN)


def test_conditioning_is_part_of_a_row(tmp_path: Path) -> None:
    file = tmp_path / "keys.gguf"
    file.write_bytes(b"GGUF")
    rows = parse_types(f"turbo3,turbo3@off,q4_0,q4_0@on,turbo3/f16@{file}", KNOWN)
    assert [row.conditioned for row in rows] == [None, False, False, True, True]
    assert rows[1].args == ["-ctk", "turbo3", "-ctv", "turbo3", "--kv-condition", "off"]
    assert (rows[4].k, rows[4].v) == ("turbo3", "f16")


def test_label_and_file_name_of_a_configuration() -> None:
    config = KVConfig("q8_0", "turbo3", "a/b.gguf")
    assert config.label == "q8_0/turbo3@a/b.gguf"
    assert config.slug == "q8_0-turbo3-a-b.gguf"
    assert config.args == ["-ctk", "q8_0", "-ctv", "turbo3", "--kv-condition", "a/b.gguf"]


@pytest.mark.parametrize(
    ("asked", "reported", "same"),
    [
        ("turbo3", "turbo3", True),
        ("turbo3", "turbo3_64", True),
        ("turbo3", "turbo2_64", False),
        ("turbo3", "q8_0", False),
        ("q4", "q4_0", False),
        ("q4_0", "q4_1", False),
    ],
)
def test_a_family_is_known_by_any_of_its_blocks(asked: str, reported: str, same: bool) -> None:
    assert is_type(asked, reported) is same


def test_cache_of_a_run() -> None:
    [report] = kv_log.parse_contexts(recorded("load-q8_0-turbo3.log"))
    [cache] = report.caches
    assert (cache.k_type, cache.k_mib, cache.v_type, cache.v_mib) == ("q8_0", 11.95, "turbo3", 4.57)
    assert (cache.cells, cache.streams, cache.layers) == (512, 4, 30)
    [kind] = report.kinds
    assert (kind.k_type, kind.v_type, kind.v_bits, kind.v_dim) == ("q8_0", "turbo3_64", 3.25, 64)
    assert report.flash_attn == "enabled"
    assert report.rotation == {"k": True, "v": False}
    assert report.buffers_mib == 16.52
    assert report.cells == 2048


def test_sliding_window_has_a_cache_of_its_own() -> None:
    [report] = kv_log.parse_contexts(recorded("load-gemma3-turbo3-q8_0.log"))
    assert [cache.layers for cache in report.caches] == [3, 15]
    assert [kind.kind for kind in report.kinds] == ["full", "sliding window"]
    assert report.mib == pytest.approx(2.18 + 10.90, abs=0.021)


def test_dry_runs_are_not_taken_for_runs() -> None:
    log = recorded("dry-run-f32.log")
    assert log.count("constructing llama_context") == 2
    [report] = kv_log.parse_contexts(log)
    assert report.buffers_mib == 90.0


def test_the_context_that_keys_are_measured_in_is_not_taken_for_the_run_s() -> None:
    log = recorded("speed-0-turbo2-first.log")
    assert log.count("constructing llama_context") == 3
    reports = kv_log.parse_contexts(log)
    assert [(report.flash_attn, report.kinds[0].k_type) for report in reports] == [("enabled", "turbo2_64")] * 2
    assert {report.conditioning for report in reports} == {"30 layers, keys are centred and equalised"}
    # It does not stand for the run's own when that is missing.
    before, _, _ = log.partition("key conditioning: computed")
    assert kv_log.parse_contexts(before) == []


def test_every_context_of_a_bench_is_seen() -> None:
    assert len(kv_log.parse_contexts(recorded("speed-0-f16.log"))) == 2


@pytest.mark.parametrize(("name", "bits"), [("f16", 16.0), ("turbo2", 2.25), ("q8_0-turbo3", (8.5 + 3.25) / 2)])
def test_bits_per_value_from_bytes_and_metadata(name: str, bits: float, tmp_path: Path) -> None:
    model = read_model(write_model(tmp_path / "m.gguf"))
    [report] = kv_log.parse_contexts(recorded(f"load-{name}.log"))
    found = kv_log.bits_per_value(report, model)
    assert found == pytest.approx(bits, rel=0.002)
    # Half the heads make twice the bits: the number really comes from the metadata.
    half = read_model(write_model(tmp_path / "half.gguf", kv_heads=6))
    assert found is not None
    assert kv_log.bits_per_value(report, half) == pytest.approx(found / 2)


def test_bits_per_value_from_the_log_where_metadata_cannot_count(tmp_path: Path) -> None:
    model = read_model(write_model(tmp_path / "m.gguf", layers=10))
    [report] = kv_log.parse_contexts(recorded("load-turbo2.log"))
    assert kv_log.bits_per_value(report, model) == pytest.approx(2.25)


def test_no_problem_with_what_was_asked() -> None:
    reports = kv_log.parse_contexts(recorded("load-q8_0-turbo3.log"))
    assert kv_log.problems(KVConfig("q8_0", "turbo3"), True, reports) == []


def test_problems_are_named() -> None:
    reports = kv_log.parse_contexts(recorded("load-f16.log"))
    assert kv_log.problems(KVConfig("turbo3", "f16"), True, reports) == ["K was f16, not turbo3"]
    assert kv_log.problems(F16, False, reports) == ["flash attention was enabled, not disabled"]
    assert kv_log.problems(F16, True, []) != []


def test_a_type_that_resolved_to_another_family_is_a_problem() -> None:
    log = recorded("load-turbo2.log").replace("K turbo2_64 x 64", "K q8_0 x 64")
    assert kv_log.problems(KVConfig("turbo2", "turbo2"), True, kv_log.parse_contexts(log)) == ["K was q8_0, not turbo2"]


def test_statistics_of_a_run() -> None:
    found = perplexity.parse_quality(recorded("quality-q8_0-turbo3.log"), ctx=512)
    assert (found.ppl, found.ppl_err) == (18.117242, 1.514194)
    assert (found.kld_mean, found.kld_err, found.kld_median) == (0.022344, 0.001062, 0.015476)
    assert (found.kld_p99, found.kld_p999, found.kld_max) == (0.124586, 0.481498, 0.555459)
    assert (found.same_top, found.same_top_err) == (92.157, 0.842)
    assert (found.rms_dp, found.rms_dp_err) == (3.472, 0.27)
    assert (found.chunks, found.values) == (4, 4 * 255)


def test_statistics_of_an_unpatched_build() -> None:
    found = perplexity.parse_quality(recorded("upstream-quality-q4_0.log"), ctx=512)
    assert (found.ppl, found.kld_mean, found.kld_p999, found.same_top) == (27.066062, 0.058116, 1.971115, 86.618)
    assert found.chunks == 8


@pytest.mark.parametrize("missing", ["Median  KLD", "Same top p", "Mean PPL(Q)  "])
def test_missing_statistics_are_noticed(missing: str) -> None:
    log = recorded("quality-f16.log").replace(missing, "gone")
    with pytest.raises(CheckFailed):
        perplexity.parse_quality(log, ctx=512)


def test_nan_is_not_a_result() -> None:
    log = re.sub(r"Maximum KLD: +[\d.]+", "Maximum KLD:        nan", recorded("quality-f16.log"))
    with pytest.raises(CheckFailed, match="kld_max is nan"):
        perplexity.parse_quality(log, ctx=512)


def test_reference_estimate() -> None:
    found = perplexity.parse_reference(recorded("reference.log"), ctx=512)
    assert found == perplexity.Reference(ppl=18.0036, ppl_err=1.51868, chunks=4, values=1020)
    assert perplexity.parse_reference(recorded("failed-too-short.log"), ctx=512) is None


def test_progress_of_both_kinds_of_run() -> None:
    reference, row = recorded("reference.log"), recorded("quality-f16.log")
    assert perplexity.finished_chunks(reference) == 4
    assert perplexity.finished_chunks(reference[: reference.index("[3]")]) == 2
    assert perplexity.finished_chunks(row) == 4
    assert perplexity.finished_chunks(recorded("load-f16.log")) == 0


def test_size_of_the_reference_file_is_what_a_real_one_had() -> None:
    # SmolLM2 has 49152 words; the file of 4 chunks of 512 tokens had 100286452 bytes.
    assert perplexity.reference_bytes(512, 4, 49152) == 100286452


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("failed-no-block.log", "K cache type turbo3: layer 0 has heads of 32 values, .* types that work here: f16"),
        ("failed-truncated.log", "error loading model: tensor .* is not within the file bounds"),
        ("failed-unknown-type.log", "Unsupported cache type: foo"),
    ],
)
def test_reason_of_a_failure(log: str, why: str) -> None:
    assert re.search(why, perplexity.failure(recorded(log)))
    assert "\n" not in perplexity.failure(recorded(log))


def test_too_short_text_is_told_with_numbers() -> None:
    assert perplexity.too_short(recorded("failed-too-short.log")) == (1024, 1)
    assert perplexity.too_short(recorded("reference.log")) is None


def test_bench_numbers() -> None:
    prompt, generation = bench.parse(recorded("speed-512-f16.log"))
    assert (prompt.kind, generation.kind) == ("prompt", "generation")
    assert (prompt.depth, prompt.k_type, prompt.flash_attn) == (512, "f16", True)
    assert len(prompt.samples) == len(generation.samples) == 2
    assert max(prompt.samples) == 358.263


@pytest.mark.parametrize("output", ["", '{"n_prompt": 1}', "{broken", "no json at all"])
def test_bench_output_that_is_none(output: str) -> None:
    with pytest.raises(CheckFailed, match="llama-bench"):
        bench.parse(output)


def test_bench_that_ended_half_way() -> None:
    lines = [line for line in recorded("speed-0-f16.log").splitlines() if line.startswith("{")]
    with pytest.raises(CheckFailed, match="without a prompt and a generation"):
        bench.parse(lines[0])


def test_commands_ask_for_what_is_checked_later() -> None:
    argv = perplexity.row_command(Path("b"), Path("m"), KVConfig("q8_0", "turbo3"), ctx=512, threads=2, store=Path("s"))
    text = " ".join(argv)
    assert "-fa on" in text
    assert "-ctk q8_0 -ctv turbo3" in text
    assert "-lv 4" in text
    reference = perplexity.reference_command(
        Path("b"), Path("m"), Path("t"), KVConfig("f32", "f32"), ctx=512, chunks=3, threads=2, store=Path("s")
    )
    assert "-fa off" in " ".join(reference)
