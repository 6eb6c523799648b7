"""Does a fabric stall, when, and for how long?"""
