"""Import-linter contracts that list what is allowed, rather than everything that is not.

Both look at direct imports: what an allowed module imports in turn is the matter of its own contract. A
module or package that nobody has written or imported yet keeps its contract.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class Link(NamedTuple):
    """One import of one module by another."""

    importer: str
    imported: str


class _AllowList(Contract):
    """Reports the links that its subclass does not allow."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Collect every link that is not allowed."""
        breaches = [link for link in _links(graph) if not self.allows(link)]
        return ContractCheck(
            kept=not breaches,
            metadata={"breaches": [(link, _lines(graph, link)) for link in breaches]},
        )

    def allows(self, link: Link) -> bool:
        """Whether the contract has nothing against this link."""
        raise NotImplementedError

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each breach with its lines."""
        for (importer, imported), lines in check.metadata["breaches"]:
            output.print_error(f"- {importer} -> {imported} (l.{lines})", bold=False)
        output.new_line()


class ImportsOnly(_AllowList):
    """``importers`` may import the packages in ``allowed`` and the standard library, nothing else.

    Modules of the names in ``excepted``, wherever they stand below, have a contract of their own.
    """

    importers: Any = fields.ListField(subfield=fields.StringField())
    excepted: Any = fields.ListField(subfield=fields.StringField(), required=False)
    allowed: Any = fields.ListField(subfield=fields.StringField())

    def allows(self, link: Link) -> bool:
        """Whether the importer is someone else, or the import is on the list."""
        return (
            not _within(link.importer, self.importers)
            or link.importer.rsplit(".", 1)[-1] in (self.excepted or [])
            or link.imported.split(".")[0] in sys.stdlib_module_names
            or _within(link.imported, self.allowed)
        )


class ImportedOnlyBy(_AllowList):
    """``packages`` may be imported by ``importers`` only."""

    packages: Any = fields.ListField(subfield=fields.StringField())
    importers: Any = fields.ListField(subfield=fields.StringField())

    def allows(self, link: Link) -> bool:
        """Whether the import is of something else, or the importer is on the list."""
        return not _within(link.imported, self.packages) or _within(link.importer, self.importers)


def _within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _links(graph: ImportGraph) -> Iterator[Link]:
    for importer in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            yield Link(importer, imported)


def _lines(graph: ImportGraph, link: Link) -> str:
    details = graph.get_import_details(importer=link.importer, imported=link.imported)
    return ", ".join(str(detail["line_number"]) for detail in details)
