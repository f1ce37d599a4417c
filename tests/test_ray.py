"""Methods over Arrow tables, in this process and in Ray's actors."""

from __future__ import annotations

import json

import pytest

from surerag.errors import ConfigurationError
from surerag.ray import MapMethod, load_function

pa = pytest.importorskip("pyarrow")
COLUMNS = {"answer": "answer", "retrieved": "decision.retrieve"}


def lazy(**more: object) -> MapMethod:
    return MapMethod("tests.pipelines_for_ray:lazy", settings={"threshold": 1.0}, **more)


def questions(n: int) -> object:
    return pa.table({"question": [f"Where is {'x' * (at % 7)} {at}?" for at in range(n)]})


def test_returns_the_table_with_named_columns() -> None:
    table = lazy(columns=COLUMNS)(questions(9))
    assert table.column_names == ["question", "answer", "retrieved", "error"]
    assert set(table["answer"].to_pylist()) == {"yes", "no"}
    assert table["error"].null_count == 9


def test_passages_come_from_texts_or_structs() -> None:
    rows = {
        "question": ["Where was Ada born?"] * 2,
        "passages": [
            [{"text": "Ada, a painter, was born in Velm.", "id": "a"}],
            [{"text": "Bo.", "id": "b"}],
        ],
    }
    table = MapMethod("tests.pipelines_for_ray:compressor", arguments=("question", "passages"))(
        pa.table(rows)
    )
    results = [json.loads(text) for text in table["result"].to_pylist()]
    assert results[0]["passages"][0]["metadata"]["compressed_from"][0]["id"] == "a"
    assert results[0]["usage"]["requests"] == 1


def test_a_failing_row_keeps_its_place() -> None:
    table = lazy(columns=COLUMNS)(pa.table({"question": ["Where?", " ", "Who?"]}))
    assert table["answer"].to_pylist()[1] is None
    assert "question" in table["error"].to_pylist()[1]
    assert table["error"].null_count == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load_function("no_such_module:f"), "cannot import"),
        (lambda: load_function("tests.pipelines_for_ray"), "cannot import"),
        (lambda: MapMethod("tests.pipelines_for_ray:no_method"), "expected a method"),
        (lambda: lazy()(pa.table({"query": ["Where?"]})), "no column 'question'"),
        (lambda: lazy(columns={"x": "decision.nothing"})(questions(1)), "no 'decision.nothing'"),
    ],
)
def test_what_is_misconfigured_raises(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.timeout(120)
def test_rays_actors_give_the_rows_of_one_process(tmp_path: object) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        table = questions(200)
        data = ray.data.from_arrow(table).map_batches(
            MapMethod,
            fn_constructor_args=["tests.pipelines_for_ray:lazy"],
            fn_constructor_kwargs={"settings": {"threshold": 1.0}, "columns": COLUMNS},
            batch_format="pyarrow",
            batch_size=50,
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        data.write_parquet(str(tmp_path))
    finally:
        ray.shutdown()
    import pyarrow.dataset as ds

    rows = ds.dataset(tmp_path).to_table().sort_by("question")
    assert rows.to_pylist() == lazy(columns=COLUMNS)(table).sort_by("question").to_pylist()
