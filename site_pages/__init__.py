"""The generated pages of the site: reference, command line and notebooks.

``python -m site_pages`` copies ``docs`` to ``build/pages`` and adds these pages; Zensical builds the site.
"""
