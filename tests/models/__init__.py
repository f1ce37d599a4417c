"""Which part works with which kind of model: run for real against servers that behave as providers say."""
