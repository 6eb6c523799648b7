"""`roce-ring bench`: starts ranks as processes, checks every result, and prints what an operation costs."""
