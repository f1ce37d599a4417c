"""The running batch of ``transformers``' own continuous batching, in place of our own batches.

Who asks joins a batch that is running already, and leaves it when his answer has ended; nobody waits for the
end of anybody else's. The library keeps keys and values in pages, which prompts that begin alike share, and
forks a prompt for its samples. Which token comes next it asks us at each step, so that chance,
log-probabilities, entropies, stop texts and thoughts are those of our own engine.
"""

from surerag.readers.transformers.continuous.engine import ContinuousEngine

__all__ = ["ContinuousEngine"]
