"""The lint contracts find what they are for."""

from __future__ import annotations

import pytest
from grimp import ImportGraph

from tools.import_contracts import ImportedOnlyBy, ImportsOnly


def graph_of(*links: tuple[str, str]) -> ImportGraph:
    graph = ImportGraph()
    for importer, imported in links:
        graph.add_import(importer=importer, imported=imported, line_number=7, line_contents="import …")
    return graph


def breaches(contract: ImportsOnly | ImportedOnlyBy, graph: ImportGraph) -> list[tuple[str, str]]:
    check = contract.check(graph, verbose=False)
    found = [tuple(link) for link, _ in check.metadata["breaches"]]
    assert check.kept is not bool(found)
    return found


GRAPH = graph_of(
    ("house.room", "numpy"),
    ("house.room.corner", "house.types"),
    ("house.room", "json"),
    ("house.room", "torch"),
    ("house.roomy", "torch"),
    ("house.model", "torch"),
)


def test_a_room_imports_only_what_is_listed_and_the_standard_library() -> None:
    contract = ImportsOnly(
        "rooms",
        session_options={},
        contract_options={"importers": ["house.room"], "allowed": ["numpy", "house.types"]},
    )
    assert breaches(contract, GRAPH) == [("house.room", "torch")]


def test_modules_of_an_excepted_name_have_a_contract_of_their_own() -> None:
    graph = graph_of(("house.room.door", "drivers"), ("house.room.desk", "drivers"))
    contract = ImportsOnly(
        "rooms",
        session_options={},
        contract_options={"importers": ["house.room"], "allowed": [], "excepted": ["door"]},
    )
    assert breaches(contract, graph) == [("house.room.desk", "drivers")]


@pytest.mark.parametrize(
    ("importers", "expected"),
    [
        (["house.model"], [("house.room", "torch"), ("house.roomy", "torch")]),
        (["house.model", "house.room"], [("house.roomy", "torch")]),
        (["house"], []),
    ],
)
def test_a_package_is_imported_only_by_those_listed(
    importers: list[str], expected: list[tuple[str, str]]
) -> None:
    contract = ImportedOnlyBy(
        "torch", session_options={}, contract_options={"packages": ["torch"], "importers": importers}
    )
    assert breaches(contract, GRAPH) == expected


def test_a_breach_is_shown_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    contract = ImportedOnlyBy(
        "torch", session_options={}, contract_options={"packages": ["torch"], "importers": ["house.roomy"]}
    )
    contract.render_broken_contract(contract.check(GRAPH, verbose=False))
    assert "house.room -> torch (l.7)" in capsys.readouterr().out
