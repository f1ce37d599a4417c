"""These tests need a GPU."""

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
