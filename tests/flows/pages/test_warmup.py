from flows.pages.warmup import page
from tasks.contracts import CompileRef, GraphUse, NewGraph, ShapeTiming
from tasks.plan import plan_run
from tests.support.fake_runner import small_config
from tests.support.pages import table_of
from tests.support.stages import carry_out

GRAPHS = GraphUse(hits=0, misses=7, compile_seconds=41.25, seconds_saved=0, readable=True, compiled=("a",), new=())


def test_every_shape_has_its_first_step_and_its_steps(store, runner):
    plan = plan_run(store, small_config())
    shapes = (
        ShapeTiming(query_tokens=16, item_tokens=16, first_step_seconds=12.5, step_seconds=0.035),
        ShapeTiming(query_tokens=16, item_tokens=32, first_step_seconds=13.0, step_seconds=0.07),
    )
    text = page(store, plan, carry_out(plan).warm.model_copy(update={"shapes": shapes}))
    assert text.startswith("# 2 shapes tried, 0.10 GiB at most\n\nA step takes 0.035 to 0.07 s on fake.")
    assert table_of(text, "query tokens")[1:] == [["16", "16", "12.500", "0.035"], ["16", "32", "13.000", "0.070"]]
    assert table_of(text, "measured")[1:] == [
        ["peak memory", "0.10 GiB"],
        ["evaluating the holdout", "0.10 s"],
        ["writing a checkpoint", "0.10 s"],
    ]


def test_a_device_that_compiles_nothing_has_no_graphs(store, runner):
    plan = plan_run(store, small_config())
    text = page(store, plan, carry_out(plan).warm)
    assert "Graphs" not in text
    assert "Environment" not in text


def test_graphs_and_what_was_set_for_the_compiler(store, runner):
    plan = plan_run(store, small_config())
    warm = carry_out(plan).warm.model_copy(
        update={
            "graphs": GRAPHS,
            "compiled": CompileRef(key="k-1", graphs=7, seconds=41.25),
            "environment": {"NEURON_CC_FLAGS": "-O1 | <x>", "A": "1"},
        }
    )
    text = page(store, plan, warm)
    assert "Compiled 7 graphs in 41.2 s; none was there before." in text
    assert table_of(text, "compiled here")[1] == ["7", "0", "41.2", "0.0"]
    assert table_of(text, "variable")[1:] == [["A", "1"], ["NEURON_CC_FLAGS", "-O1 | <x>"]]
    assert ["compiled graphs", f"{store.uri}/compile/k-1"] in table_of(text, "where")


def test_graphs_that_were_new_are_named(store, runner):
    plan = plan_run(store, small_config())
    new = (NewGraph(name="graph|7", where="step 12, 24 x 32 tokens", seconds=1.2),)
    graphs = GRAPHS.model_copy(update={"hits": 6, "misses": 1, "new": new, "seconds_saved": 40.0})
    text = page(store, plan, carry_out(plan).warm.model_copy(update={"graphs": graphs}))
    assert table_of(text, "met at")[1] == ["graph|7", "step 12, 24 x 32 tokens", "1.2"]
    assert "40.0 s of compiling saved" in text
