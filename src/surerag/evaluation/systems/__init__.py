"""Whole systems compared on the same questions: what each answers, is it right, and what does it cost."""
