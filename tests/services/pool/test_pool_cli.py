"""``rlep pool …`` on an embedded pool: what each verb prints, does, and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rlep.cli import app
from rlep.cli.pool.look import places
from rlep.core.printable import printable
from rlep.engines.tokenizer import Tokenizer, load_tokenizer
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.codec import decode
from rlep.services.pool.storage.store import NewRecord
from tests.services.pool.pool_commands import IDS, MODEL, ROWS, Commands
from tests.services.pool.pool_servers import serving, token_file


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MODEL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def rlep(served_redis: EmbeddedRedis, tokenizer: Tokenizer, data: Path, request: pytest.FixtureRequest) -> Commands:
    return Commands(served_redis, tokenizer, data, f"cli-{zlib.crc32(request.node.nodeid.encode()):x}")


@pytest.fixture
def filled(rlep: Commands) -> Commands:
    r"""A pool of five answers: three to question 0 (one of them wrong, by an old verifier), two to question 1."""
    texts = [(0, r"\boxed{1}"), (0, r"So \boxed{1}"), (0, r"\boxed{2}"), (1, r"\boxed{2}"), (1, r"So So \boxed{2}")]
    with rlep.pool() as pool:
        assert pool.add([rlep.answer(n, text) for n, text in texts]).inserted == 5
    return rlep


def test_stats_count_questions_lengths_and_origins(filled: Commands, data: Path) -> None:
    found = filled.json("stats", "--data", data)
    assert (found["trajectories"], found["questions_asked"], found["questions_without"]) == (5, 4, 2)
    assert found["questions_with"] == {"1": 2, "2": 2, "4": 0, "8": 0}
    assert (found["by_policy"], found["by_verifier"]) == ({"policy@1": 5}, {"math@0": 5})
    assert found["tokenizer_digest"] == filled.tokenizer.digest
    assert found["redis_used_bytes"] > found["bytes"] > 0
    measured = found["measured"]
    assert (measured["questions"], measured["trajectories"]) == (2, 5)
    # \boxed{ 1 } EOS: 4 tokens; one more for each "So "
    assert {level: measured["length"][level] for level in ("0.0", "0.5", "1.0")} == {"0.0": 4, "0.5": 4, "1.0": 6}
    table = filled.ok("stats", "--data", data)
    assert "none (of 4 asked)" in table
    assert "quantiles of 5 responses to 2 questions" in table


def test_show_prints_a_question_or_an_answer_decoded(filled: Commands) -> None:
    one = filled.answer(1, r"So So \boxed{2}")
    assert r"  So So \boxed{2}" in filled.ok("show", one.content_id).splitlines()
    assert filled.ok("show", IDS[1]).count(f"(prompt {IDS[1]})") == 2
    (line,) = [json.loads(text) for text in filled.ok("show", one.content_id, "--json").splitlines()]
    assert (line["tokens"], line["prompt_id"], line["precision"]) == (one.tokens.tolist(), IDS[1], "float16")
    assert filled.mistake("show", "nobody", status=1).endswith("holds neither a prompt nor a trajectory nobody")


def test_show_without_the_tokenizer_prints_ids(filled: Commands, tmp_path: Path) -> None:
    filled.settings += ["--set", f'model.path="{tmp_path / "gone"}"']
    assert "token ids [" in filled.ok("show", IDS[1])


def test_sample_is_what_a_step_draws(filled: Commands) -> None:
    words = ("sample", "--count", "2", "--seed", "5", "--step", "41", "--json")
    lines = [json.loads(line) for line in filled.ok(*words).splitlines()]
    assert [line["prompt_id"] for line in lines] == sorted(IDS[:2])
    with filled.pool() as pool:
        expected = pool.sample(sorted(IDS[:2]), 2, seed=5, step=41)
    assert [one["content_id"] for line in lines for one in line["drawn"]] == list(expected.ids)
    assert filled.ok(*words, "--prompt", IDS[1]).splitlines() == [
        json.dumps(line) for line in lines if line["prompt_id"] == IDS[1]
    ]


def test_browse_prints_questions_with_answers(filled: Commands) -> None:
    text = filled.ok("browse")
    assert text.count("question ") == 2
    assert "0+1=\nreference: 1\n" in text
    assert text.count(r"\boxed{2}") == 3
    assert filled.ok("browse", "--least", "3").count("question ") == 1
    assert filled.ok("browse", "--from", max(IDS[:2])).count("question ") == 1
    assert filled.mistake("browse", "--least", "9", status=1).endswith("has no question of this kind")


def test_a_reader_goes_to_and_fro() -> None:
    assert list(places(3, iter(" p\x1b[Dx"))) == [0, 1, 0]  # single keys; an escape alone ends it
    assert list(places(3, iter(["n", "\r", "p", "\x1b[C", " ", "n"]))) == [0, 1, 2, 1, 2]
    assert list(places(3, iter(["p", "q", "n"]))) == [0]


def test_a_text_cannot_steer_the_terminal(filled: Commands) -> None:
    assert printable("a\x1b[2Jb\n\tc\x9bd") == "a�[2Jb\n\tc�d"
    with filled.pool() as pool:
        pool.add([filled.answer(2, r"\boxed{3}", metadata={"source": "\x1b]0;owned\x07"})])
    assert "\x1b]0" not in filled.ok("show", IDS[2])


def test_an_export_is_imported_into_a_pool_that_it_makes(filled: Commands, tmp_path: Path) -> None:
    out, name = tmp_path / "out", f"{filled.name}-copy"
    summary = filled.json("export", out)
    assert (summary["records"], summary["shards"]) == (5, 1)
    assert filled.json("export", out, "--as", "parquet") == summary  # finished before
    report = filled.json("import", out, name=name)
    assert (report["inserted"], report["duplicates"], report["refused"]) == (5, 0, {})
    assert "0 inserted, 5 there before, 0 refused" in filled.ok("import", out, name=name)
    with filled.pool(name) as twin:
        assert twin.digest() == summary["digest"]


def test_what_a_stranger_says_of_the_vocabulary_is_of_a_new_pool_alone(filled: Commands, tmp_path: Path) -> None:
    """A pool that is there would refuse its own records for ever."""
    out, name = tmp_path / "out", f"{filled.name}-new"
    filled.ok("export", out)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | {"vocabulary": 500_000}))
    filled.ok("import", out)
    filled.ok("import", out, name=name)
    with filled.pool(filled.name) as own, filled.pool(name) as new:
        assert (own.stats().vocabulary, new.stats().vocabulary) == (None, 500_000)


def test_the_models_own_vocabulary_is_recorded_in_a_pool_that_is_there(filled: Commands, tmp_path: Path) -> None:
    out = tmp_path / "pool.parquet"
    filled.ok("export", out, "--as", "candidates")
    filled.ok("import", out)
    with filled.pool(filled.name) as pool:
        assert pool.stats().vocabulary == json.loads((MODEL / "config.json").read_text())["vocab_size"]


def test_candidates_go_out_and_come_in_graded(filled: Commands, tmp_path: Path) -> None:
    out = tmp_path / "pool.parquet"
    assert filled.json("export", out, "--as", "candidates") == {"file": str(out), "questions": 2, "left_out": 0}
    table = {row["prompt"][0]["content"]: row["reward_model"] for row in pq.read_table(out).to_pylist()}
    assert sorted(table) == ["0+1=", "1+1="]
    assert sorted(table["0+1="]["candidates"]) == [r"So \boxed{1}", r"\boxed{1}", r"\boxed{2}"]
    report = filled.json("import", out, name=f"{filled.name}-in")
    assert (report["inserted"], report["refused"]) == (4, {"wrong": 1})
    with filled.pool(f"{filled.name}-in") as twin:
        for prompt_id in IDS[:2]:
            for content_id in twin.content_ids(prompt_id):
                record = twin.record(content_id, prompt_id)
                assert record is not None
                assert decode(record, prompt_id).metadata == {"retokenised": "true", "source": "pool.parquet"}
    text = filled.ok("import", out, name=f"{filled.name}-in")
    assert "0 inserted, 4 there before, 1 refused" in text
    assert "the verifier says wrong: found '2', the reference is '1'" in text
    assert not list(tmp_path.glob(".pool*"))


def test_verify_reports_then_quarantines(filled: Commands, tmp_path: Path) -> None:
    bad = filled.answer(0, r"\boxed{2}")
    looked = filled.json("verify", "--dry-run")
    assert (looked["graded"], looked["statuses"], looked["quarantined"]) == (5, {"correct": 4, "wrong": 1}, 0)
    out = tmp_path / "differences.jsonl"
    found = filled.json("verify", "--out", out)
    assert (found["failed"], found["quarantined"], found["unknown"]) == (1, 1, 0)
    (difference,) = map(json.loads, out.read_text().splitlines())
    assert (difference["content_id"], difference["after"]["status"]) == (bad.content_id, "wrong")
    with filled.pool() as pool:
        assert pool.stats().trajectories == 4
    assert "quarantined" in filled.ok("show", bad.content_id).splitlines()[0]
    assert "0 quarantined" in filled.ok("verify")


def test_verify_does_not_write_over_its_questions(filled: Commands, tmp_path: Path) -> None:
    data, link = tmp_path / "asked.jsonl", tmp_path / "link.jsonl"
    data.write_text(json.dumps(ROWS[0]) + "\n")
    link.symlink_to(data)
    for out in (data, link):
        message = filled.mistake("verify", "--data", data, "--out", out)
        assert message == f"--out {out} is a file of the questions; name another"
    assert data.read_text() == json.dumps(ROWS[0]) + "\n"


def test_verify_does_not_know_questions_of_other_files(filled: Commands, tmp_path: Path) -> None:
    data = tmp_path / "changed.jsonl"
    data.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[1] | {"answer": "3"}) + "\n")
    found = filled.json("verify", "--data", data)
    assert (found["graded"], found["unknown"], found["unknown_questions"]) == (3, 2, 1)
    assert "2 answers to 1 question that these files do not have" in filled.ok("verify", "--data", data)


def test_verify_by_another_verifier_must_be_meant(filled: Commands) -> None:
    filled.settings += ["--set", "verifier.profile=dapo"]
    message = filled.mistake("verify")
    assert "holds verdicts of math@0, verifier.profile is dapo" in message
    assert filled.json("verify", "--dry-run")["statuses"] == {"no_answer": 5}
    assert filled.json("verify", "--other-verifier")["quarantined"] == 5


def test_prune_plans_and_removes(filled: Commands) -> None:
    assert filled.mistake("prune").startswith("nothing says what to prune: give --policy")
    planned = filled.json("prune", "--keep", "2", "--dry-run")
    assert (planned["examined"], planned["removed"], planned["dry_run"]) == (5, 1, True)
    assert "removed 1 of 5 trajectories" in filled.ok("prune", "--keep", "2")
    assert filled.json("prune", "--policy", "other@*")["removed"] == 0
    assert filled.json("prune", "--verifier", "math@0", "--older-than", "1")["removed"] == 4  # all of 1970
    assert filled.json("stats")["trajectories"] == 0


def test_seal_asks_first(filled: Commands) -> None:
    refused = filled.run("seal", given="n\n")
    assert refused.exit_code == 1
    with filled.pool() as pool:
        assert pool.sealed is None
        digest = pool.digest()
    assert filled.json("seal", "--yes") == {"digest": digest}
    assert filled.json("stats")["sealed"] == digest
    assert "is sealed" in filled.mistake("prune", "--keep", "1", status=1)
    assert "only look (--dry-run)" in filled.mistake("verify", status=1)
    assert filled.json("verify", "--dry-run")["failed"] == 1


def test_check_finds_and_prune_removes_a_damaged_record(filled: Commands) -> None:
    found = filled.checked()
    assert {finding["level"] for finding in found.values()} == {"ok"}
    assert set(found) == {"pool server", "pool content", "pool tokenizer", "pool counters", "pool records"}
    with filled.pool() as pool:
        pool.add_entries([NewRecord(IDS[3], b"\7" * 16, "p@1\nmath@0", b"no record")])
    records = filled.checked()["pool records"]
    assert records["level"] == "wrong"
    assert f"1 damaged: {'07' * 16} of prompt {IDS[3]}: record of 9 bytes" in records["detail"]
    assert "`rlep pool prune --damaged`" in records["remedy"]
    assert "would remove 1 damaged record of 6" in filled.ok("prune", "--damaged", "--dry-run")
    assert "removed 1 damaged record of 6" in filled.ok("prune", "--damaged")
    assert "every checksum and content id matches" in filled.checked()["pool records"]["detail"]
    assert "--damaged removes every damaged record" in filled.mistake("prune", "--damaged", "--keep", "1")
    assert "there is no pool nobody in this Redis" in filled.checked("nobody")["pool records"]["detail"]


def test_the_export_of_a_sealed_pool_is_imported_sealed(filled: Commands, tmp_path: Path) -> None:
    digest = filled.json("seal", "--yes")["digest"]
    filled.ok("export", tmp_path / "out")
    copy = f"{filled.name}-copy"
    assert f"5 inserted, 0 there before, 0 refused; sealed with digest {digest}" in filled.ok(
        "import", tmp_path / "out", name=copy
    )
    assert "0 inserted, 5 there before, 0 refused" in filled.ok("import", tmp_path / "out", name=copy)
    with filled.pool(copy) as pool:
        assert pool.sealed == digest


def test_stats_show_a_policy_in_one_row_and_a_limit_in_words(rlep: Commands) -> None:
    name = f"{rlep.name}-steps"
    written = [("run", 3), ("run", 12), ("teacher", 0)]
    with rlep.pool(name) as pool:
        for n, (policy, step) in enumerate(written):
            answer = rlep.answer(n, rf"\boxed{{{n}}}")
            origin = replace(answer.provenance, policy_digest=policy, policy_version=step)
            pool.add([replace(answer, provenance=origin)])
    rows = [line.split() for line in rlep.ok("stats", name=name).splitlines()]
    assert "at most 64 responses to a question;" in rlep.ok("stats", name=name)
    assert [row for row in rows if row[:1] in (["run"], ["teacher"])] == [
        ["run", "3", "to", "12", "2"],
        ["teacher", "0", "1"],
    ]


def test_a_config_that_replays_its_own_responses_means_their_pool(rlep: Commands) -> None:
    with rlep.pool(f"{rlep.name}.live") as pool:
        pool.add([rlep.answer(0, r"\boxed{1}")])
    own = [f'run.name="{rlep.name}"', 'replay.source="live"', "replay.count=1", *rlep.place]
    words = ["pool", "stats", "--json", *(word for text in own for word in ("--set", text)), *rlep.settings]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (json.loads(result.stdout)["pool"], json.loads(result.stdout)["trajectories"]) == (f"{rlep.name}.live", 1)


def test_no_command_about_a_pool_imports_ray(filled: Commands) -> None:
    words = [*filled.settings, "--embedded", str(filled.server.directory), "--name", filled.name]
    program = (
        "import sys\n"
        "from rlep.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print('loaded:', *sorted({'ray', 'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "pool", "stats", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "5 responses" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_a_pool_that_is_not_there_is_not_made(rlep: Commands, tmp_path: Path) -> None:
    for verb in ("stats", "browse", "sample", "verify", "seal", "prune"):
        more = {"prune": ["--keep", "1"], "seal": ["--yes"]}.get(verb, [])
        message = rlep.mistake(verb, *more, status=1)
        assert message.startswith(f"there is no pool {rlep.name} in this Redis"), verb
    gone = tmp_path / "gone"
    result = CliRunner().invoke(app, ["pool", "stats", "--embedded", str(gone)])
    assert result.exit_code == 1
    assert f"{gone} holds no embedded pool; give the run's config files, --embedded DIR or --redis URL" in result.stderr
    assert not gone.exists()


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:1", "grpcs://127.0.0.1:1"])
def test_another_place_than_the_files_server_needs_none_of_its_credentials(
    filled: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", str(filled.server.password_file))
    file = tmp_path / "run.toml"
    authority = 'ca_file = "ca.pem"\n' if url.startswith("grpcs") else ""
    file.write_text(f'[pool]\nurl = "{url}"\ntoken_file = "token"\n{authority}')
    for place in (["--embedded", str(filled.server.directory)], ["--redis", filled.server.url]):
        result = CliRunner().invoke(app, ["pool", "stats", "--json", str(file), *place, "--name", filled.name])
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["trajectories"] == 5


def test_a_server_is_named_by_its_address(filled: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", str(filled.server.password_file))
    words = ["pool", "stats", "--json", "--redis", filled.server.url, "--name", filled.name]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["trajectories"] == 5


def test_the_address_that_a_server_prints_is_taken_as_it_is(filled: Commands) -> None:
    with serving(filled.server) as server:
        words = ["pool", "stats", "--json", "--redis", server.address, "--name", filled.name]
        result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["trajectories"] == 5


def test_the_option_that_names_a_pool_server_goes_with_settings_for_servers_only(
    filled: Commands, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("the-admin\n")
    with serving(filled.server, token_file=token_file(tmp_path, "admin the-admin\n")) as server:
        words = [
            "--redis",
            f"grpc://{server.address}",
            "--name",
            filled.name,
            "--set",
            f"pool.token_file={tmp_path}/token",
        ]
        result = CliRunner().invoke(app, ["pool", "stats", "--json", *words])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["trajectories"] == 5


def test_every_verb_works_at_the_address_of_a_pool_server(filled: Commands, tmp_path: Path) -> None:
    bad = filled.answer(0, r"\boxed{2}")
    here = [filled.json("stats"), filled.ok("show", IDS[0]), filled.ok("browse"), filled.ok("sample", "--seed", "5")]
    tokens = token_file(tmp_path, "admin the-admin\nappend the-writer\n")
    (tmp_path / "token").write_text("the-admin\n")
    with serving(filled.server, token_file=tokens) as server:
        filled.place = [f'pool.url="grpc://{server.address}"', f'pool.token_file="{tmp_path / "token"}"']
        stats = filled.json("stats")
        assert here[0] == stats | {key: here[0][key] for key in ("redis_bytes", "redis_used_bytes")}
        assert here[1:] == [filled.ok("show", IDS[0]), filled.ok("browse"), filled.ok("sample", "--seed", "5")]
        assert filled.json("verify")["quarantined"] == 1
        assert "quarantined" in filled.ok("show", bad.content_id).splitlines()[0]
        assert {finding["level"] for finding in filled.checked().values()} == {"ok"}
        assert filled.json("export", tmp_path / "out")["records"] == 5
        (tmp_path / "token").write_text("the-writer\n")  # may not set records aside
        assert "needs the role admin; the token has append" in filled.mistake(
            "import", tmp_path / "out", name="copy-by-a-writer", status=1
        )
        (tmp_path / "token").write_text("the-admin\n")
        copy = f"{filled.name}-copy"
        report = filled.json("import", tmp_path / "out", name=copy)
        assert (report["inserted"], report["quarantined"], report["refused"]) == (4, 1, {})
        with filled.pool(copy) as pool:
            assert (pool.stats().cap, pool.stats().quarantined) == (64, 1)
            pool.store.set_aside([NewRecord(IDS[3], b"\7" * 16, "p@1\nmath@0", b"no record")])
        assert "removed 1 damaged record of 6" in filled.ok("prune", "--damaged", name=copy)
        assert filled.checked(copy)["pool records"]["level"] == "ok"
        assert filled.json("prune", "--keep", "2")["removed"] == 0
        assert filled.json("seal", "--yes") == {"digest": filled.json("stats")["sealed"]}
    assert "nobody listens there" in filled.checked()["pool records"]["detail"]


def test_a_place_that_cannot_be_written_is_named(filled: Commands, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in filled.mistake("export", tmp_path / "file" / "out")
    out = tmp_path / "gone" / "pool.parquet"
    assert str(out.parent) in filled.mistake("export", out, "--as", "candidates")


def hostile_file(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        (directory / name).write_bytes(content)
        return directory / name

    return write


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (hostile_file("pool.zip", b"PK\x03\x04" + bytes(300)), "is an archive or compressed (zip); unpack it first"),
        (hostile_file("pool.parquet", b"\x1f\x8b" + bytes(300)), "is an archive or compressed (gzip)"),
        (hostile_file("pool.jsonl", bytes(257) + b"ustar" + bytes(300)), "is an archive or compressed (tar)"),
        (hostile_file("pool.txt", b"x"), "a dataset is a .parquet or .jsonl file, not .txt"),
        (hostile_file("pool.jsonl", b'{"problem": "a", "answer": "1", "candidates": "x"}'), "are no list of texts"),
        (hostile_file("pool.jsonl", b'{"problem": "a", "answer": "1"}'), "pool.jsonl: no row has candidates"),
        (lambda directory: directory / "gone", "cannot be read: No such file"),
        (lambda directory: directory, "manifest.json cannot be read"),
    ],
)
def test_an_import_refuses_what_it_cannot_trust(
    rlep: Commands, tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    assert reason in rlep.mistake("import", make(tmp_path))


def test_texts_of_another_models_pool_are_refused(filled: Commands, tmp_path: Path) -> None:
    with Pool.open(filled.server.url, "foreign", tokenizer_digest="another", password_file=filled.server.password_file):
        pass
    message = filled.mistake("export", tmp_path / "x.parquet", "--as", "candidates", name="foreign")
    assert f"model.path = {MODEL} has tokenizer {filled.tokenizer.digest}; pool foreign holds token ids of" in message
    assert filled.mistake("export", tmp_path / "x", "--as", "candidates").endswith("name it .parquet or .jsonl")


def test_a_real_process_keeps_standard_output_clean(filled: Commands, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlep", *filled.words("export", tmp_path / "out", "--json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["records"] == 5
