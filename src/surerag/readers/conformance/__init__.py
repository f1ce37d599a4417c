"""The conformance suite that any reader must pass, ours and yours.

On its own, for a report to read::

    from surerag.readers.conformance import check_reader
    print(check_reader(my_reader))

Under pytest, one test a check::

    @pytest.mark.parametrize("case", conformance_cases(), ids=str)
    def test_my_reader(case, my_reader):
        outcome = case.run(my_reader)
        if outcome.status == "skipped":
            pytest.skip(outcome.detail)
        assert outcome.passed, outcome.detail
"""

from surerag.readers.conformance.suite import (
    Case,
    ConformanceReport,
    Outcome,
    check_reader,
    conformance_cases,
)
from surerag.readers.conformance.trial import Trial

__all__ = ["Case", "ConformanceReport", "Outcome", "Trial", "check_reader", "conformance_cases"]
