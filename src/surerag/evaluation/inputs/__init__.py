"""Data sets as people have them: formats, names of columns, and rows that are read as they are needed.

- :func:`check_rows`: questions, gold answers and contexts, checked once, and read in units (:class:`DataSet`)
- :func:`read_rows`: the same, one at a time
- :func:`check_questions`: questions, checked once, and read in groups (:class:`QuestionFile`)
- :func:`read_questions`: questions, with gold answers where there are some; contexts are not needed
- :func:`read_records`: whatever stands in a file, with its places
"""

from surerag.evaluation.inputs.columns import Columns, Field, given_columns
from surerag.evaluation.inputs.dataset import UNIT, DataSet, check_rows
from surerag.evaluation.inputs.fields import golds_field, text_field
from surerag.evaluation.inputs.opening import SUFFIXES, of_rows, source_of
from surerag.evaluation.inputs.questions import QuestionFile, check_questions
from surerag.evaluation.inputs.reading import read_questions, read_records, read_rows

__all__ = [
    "SUFFIXES",
    "UNIT",
    "Columns",
    "DataSet",
    "Field",
    "QuestionFile",
    "check_questions",
    "check_rows",
    "given_columns",
    "golds_field",
    "of_rows",
    "read_questions",
    "read_records",
    "read_rows",
    "source_of",
    "text_field",
]
