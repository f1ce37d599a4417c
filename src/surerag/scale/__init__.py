"""Past one machine: methods as callables over Arrow tables, for Ray Data or a plain loop.

A callable is made of plain settings and called with a table::

    import pyarrow as pa
    from surerag.scale import SePerBatch

    settings = {"reader": {"model": "Qwen/Qwen3-4B"}, "n_samples": 5}
    table = SePerBatch(**settings)(pa.table({"question": [...], "answers": [...], "contexts": [...]}))

    rows.map_batches(SePerBatch, fn_constructor_kwargs=settings, batch_format="pyarrow", batch_size=64, ...)
"""
