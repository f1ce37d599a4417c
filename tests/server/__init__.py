"""Tests against a real server: llama.cpp's, with the embedded reader. Run them by ``make test-server``."""
