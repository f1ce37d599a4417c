"""The pages of the site that programs write: reference, command line and notebooks.

``python -m site_pages`` copies ``docs`` to ``build/pages`` and adds these pages; Zensical builds the site.
"""
