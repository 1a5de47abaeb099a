import shlex

from typer.testing import CliRunner

from flows.cli.app import app
from flows.pages.release import page
from tasks import releases
from tasks.contracts import Release, RunPlan
from tasks.plan import plan_run
from tests.support.fake_runner import small_config
from tests.support.pages import blocks, table_of, told
from tests.support.stages import carry_out


def released(store, *overrides: str) -> tuple[RunPlan, Release]:
    plan = plan_run(store, small_config(*overrides))
    release = carry_out(plan).released
    assert release is not None
    return plan, release


def test_a_release_names_model_vectors_and_the_one_before(store, runner):
    released(store)
    plan, release = released(store)
    text = page(store, plan, release)
    assert text.startswith("# Release 2\n\nIt is the current release")
    values = told(text, "value")
    assert (values["model"], values["vectors"], values["previous release"]) == (release.model.version, "30", "1")
    assert values["recall@10"] == "0.5000"
    assert table_of(text, "where")[2:] == [
        ["release", f"{store.uri}/releases/2.json"],
        ["model", f"{store.uri}/{release.model_prefix}"],
        ["vectors", f"{store.uri}/{release.vectors_prefix}"],
    ]


def test_its_commands_go_back_and_forth(store, runner):
    released(store)
    plan, release = released(store)
    _, back, forth = blocks(page(store, plan, release))
    for block, number in ((back, 1), (forth, 2)):
        command, *arguments = shlex.split(block)
        assert command == "millrace"
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        current = releases.current(store)
        assert current is not None
        assert current.number == number


def test_a_release_that_is_not_current_says_which_is(store, runner):
    released(store)
    plan, release = released(store)
    releases.rollback(store)
    assert "Release 1 is current" in page(store, plan, release)


def test_the_first_has_nothing_to_go_back_to(store, runner):
    plan, release = released(store)
    text = page(store, plan, release)
    assert "Go back" not in text
    assert "trust_remote_code" not in text
    assert blocks(text) == [
        "from sentence_transformers import SentenceTransformer\n\n"
        f"folder = '{store.uri}/{release.model_prefix}'\nmodel = SentenceTransformer(folder)\n"
    ]


def test_a_model_with_interaction_brings_its_own_modules(store, runner):
    plan, release = released(store, "model.interaction.kind=both")
    assert "SentenceTransformer(folder, trust_remote_code=True)" in page(store, plan, release)


def test_a_model_in_a_bucket_is_copied_first(store, runner):
    plan, release = released(store)
    text = page(store, plan.model_copy(update={"workspace": "s3://bucket/prefix"}), release)
    version = release.model.version
    assert blocks(text)[0] == f"aws s3 cp --recursive s3://bucket/prefix/models/{version} {version}\n"
    assert f"folder = '{version}'" in blocks(text)[1]
