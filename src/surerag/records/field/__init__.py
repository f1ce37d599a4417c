"""A field test: public questions, retrieval over their own paragraphs, all methods, one reader."""
