"""Does a comparison choose rightly, and does a gate keep its word? Worlds whose truth was planted.

The reader of these worlds is made up: what it reads, knows, doubts and loses is set, so that the best system
is known before anything is asked. What carries over to a real reader is how often a decision is right at so
many questions; the sizes of the effects do not.
"""
