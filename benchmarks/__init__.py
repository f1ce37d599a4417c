"""Speed against peers, side by side in one run: ``python -m benchmarks.<name>``.

Contenders take turns (A B A B …), so that whatever else the machine does meets all of them, and the
ratios within each turn are what counts. Models are random: only their shapes matter.
"""
