"""The planner: facts about nodes and cables in, one immutable plan out.

Everything here is a pure function of its input except the edges that say so by name: ``loading`` (reads fact files),
``inventory`` (looks at one machine), ``ssh`` (asks other machines), ``output`` (writes a plan directory) and ``plan``
(the program). Needs only the standard library, PyYAML and msgspec.
"""
