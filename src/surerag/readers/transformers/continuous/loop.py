"""Everything of ``transformers``' continuous batching that we touch; part of it is private.

Nothing here is promised to stay, hence a range of versions that it was tried with.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList

from surerag.errors import ConfigurationError
from surerag.readers.transformers.continuous.tickets import Ticket, Tickets, ended
from surerag.readers.transformers.growing import GrowingSequence
from surerag.readers.transformers.lent import give_back
from surerag.readers.transformers.model import CausalModel

TESTED = ((5, 23), (5, 24))
"""From this version, up to but without this one."""
_ROWS = 256
_STEP_TOKENS_CPU, _STEP_TOKENS_ACCELERATOR = 512, 4096
# Flash kernels read pages of this size alone; elsewhere small ones let more prompts share more.
_FLASH_PAGE, _PAGE = 256, 32


def check_version() -> None:
    """Refuse a version of the library that this was not tried with.

    Raises:
        ConfigurationError: If so.
    """
    major, minor = map(int, transformers.__version__.split(".")[:2])
    if not TESTED[0] <= (major, minor) < TESTED[1]:
        wanted = "transformers>={}.{},<{}.{}".format(*TESTED[0], *TESTED[1])
        raise ConfigurationError(
            "engine='continuous' uses private parts of transformers, and was tried with "
            f"{wanted}; installed is {transformers.__version__}",
            hint=f"use engine='own', or install {wanted}",
        )


class Loop:
    """A running batch of the library's, in a thread.

    Args:
        model: The model. Nobody else may call it, but inside of :meth:`paused`.
        tokens: Tokens that the cache is to hold.
    """

    def __init__(self, model: CausalModel, tokens: int) -> None:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching import ContinuousBatchingManager

        bare = model.bare
        page = _FLASH_PAGE if "flash" in str(bare.config._attn_implementation) else _PAGE
        cpu = model.device.type == "cpu"
        config = ContinuousBatchingConfig(
            page_size=page,
            # A layer kind's last page may be only begun.
            num_blocks=-(-tokens // page) + 2,
            max_batch_tokens=min(tokens, _STEP_TOKENS_CPU if cpu else _STEP_TOKENS_ACCELERATOR),
            max_requests_per_batch=_ROWS,
            max_memory_percent=0.9,
            # What comes next is decided on the host: each step has to end before the next one can begin, and
            # what a graph repeats cannot ask anybody.
            use_async_batching=False,
            use_cuda_graph=False,
            # Kernels would be downloaded.
            auto_switch_to_flash=False,
        )
        self.tickets = Tickets()
        self._page = page
        self._names = map(str, itertools.count())
        self._submitting = threading.Lock()
        # No end token and no limit: sequences leave when we say so.
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=None)
        manager: Any = ContinuousBatchingManager(cast(Any, bare), generation, config)
        manager.logit_processor = _asking(self.tickets)
        # The library's own thread would keep the interpreter from ending.
        self._thread = threading.Thread(
            target=_run, args=(manager, self.tickets), name="surerag-continuous", daemon=True
        )
        manager._generation_thread = self._thread
        self._manager = manager
        self._thread.start()
        _loops.add(self)

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        status = self._manager.background_thread_status
        return self._thread.is_alive() and status.can_accept_new_requests() is None

    def join(
        self, prompt: Sequence[int], sequences: Sequence[GrowingSequence], until: int | None = None
    ) -> list[Ticket]:
        """Have samples of one prompt join the batch; the prompt is read once for all.

        Raises:
            ServiceError: If the loop has ended.
        """
        # A request forks before its last token is read. Where pages that were read before leave none in front
        # of that one, the library would run the model on nothing.
        if len(sequences) > 1 and len(prompt) % self._page == 1:
            return [self.join(prompt, [sequence], until)[0] for sequence in sequences]
        with self._submitting:
            name = next(self._names)
            names = [name, *(f"{name}__child#{i}" for i in range(len(sequences) - 1))]
            tickets = [Ticket(n, sequence, until) for n, sequence in zip(names, sequences, strict=True)]
            self.tickets.join(tickets)
            self._manager.num_return_sequences = len(sequences)
            if self._manager.add_request(list(prompt), request_id=name) is None:
                raise ended()
        return tickets

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop between two steps, and leave the model to the caller; one caller at a time.

        Raises:
            ServiceError: If the loop has ended.
        """
        try:
            window = self._manager.pause()
            window.__enter__()
        except RuntimeError as error:
            raise ended() from error
        model, own = self._manager.model, self._manager._original_attn_impl
        used = model.config._attn_implementation
        try:
            if own is not None:
                model.set_attn_implementation(own)
            yield
        finally:
            if own is not None:
                model.set_attn_implementation(used)
            window.__exit__(None, None, None)

    def stop(self) -> None:
        """Have it end after its present step; waits for nothing."""
        status = self._manager.background_thread_status
        status.request_stop(status.HARD_STOP, 0)
        give_back(self._manager.model, self._thread)

    def ended(self, seconds: float) -> bool:
        """Wait for its end; return whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits in the library's batch either."""
        processor = self._manager.batch_processor
        return processor is None or not processor.has_pending_requests()

    @property
    def cache_bytes(self) -> int:
        """Memory that its pages take; 0 before they are there."""
        processor = self._manager.batch_processor
        return 0 if processor is None else int(processor.cache.cache_tensor.nbytes)


_loops: weakref.WeakSet[Loop] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    # A thread inside of a kernel must not outlive the interpreter.
    running = list(_loops)
    for loop in running:
        loop.stop()
    for loop in running:
        loop.ended(5)


def _run(manager: Any, tickets: Tickets) -> None:
    """Run the library's loop to its end, and leave everything as it was."""
    manager._run_generation_loop()
    tickets.end(manager.background_thread_status.fatal_error)
    if manager._original_attn_impl is not None:
        manager.model.set_attn_implementation(manager._original_attn_impl)
    manager.batch_processor = None


def _asking(tickets: Tickets) -> Any:
    """Return what the library shows all logits to at each step, taking the likeliest of what it gets back."""
    from transformers.generation.continuous_batching.cb_logits_processors import (
        ContinuousBatchingLogitsProcessor,
        ContinuousBatchingLogitsProcessorList,
    )

    class Asking(ContinuousBatchingLogitsProcessor):
        def __init__(self) -> None:
            self.supported_kwargs = {}
            self.ignored_kwargs = ()
            self.states: Sequence[Any] = ()

        def fill_defaults(self, int32_tensor: Tensor) -> None:
            int32_tensor.zero_()

        def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Tensor:
            self.states = [request.state for request in requests_with_new_token]
            return torch.zeros(len(self.states), dtype=torch.int32)

        def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
            # Rows behind these belong to prompts that are not read to their ends yet.
            rows = len(self.states)
            chosen, leaving = tickets.step([state.request_id for state in self.states], scores[:rows])
            for row in leaving:
                # They end as if they had come to their limit. If they were cancelled, the scheduler would not
                # know that there is room again for those that it keeps waiting.
                self.states[row]._new_tokens_limit = self.states[row].generated_len() + 1
            scores[:rows].scatter_(1, chosen[:, None], torch.inf)
            return scores

    processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([Asking()]))
    # Lines of its tensor of arguments.
    processors.tensors_required = 1
    return processors
