"""SePer on the closed world: does ΔSePer measure what passages are known to be worth?"""

from surerag_studies.seper.study import seper_study

__all__ = ["seper_study"]
