"""The doctor: looks at nodes without changing anything, and says what will stop, slow down or mislead a ring.

``look*`` gather evidence on one machine (standard library only: they also run on other machines, sent over ssh);
``evidence`` is its format; ``checks*`` are pure functions from evidence and plan to
findings; ``doctor`` is the command.
"""
