"""Real readers on real text: the methods beside the parts that the frameworks ship for the same problem."""
