"""The product: traces in, an `Analysis` out.

>>> import analyzer
>>> a = analyzer.analyze("sample_traces/tp2_pp2_dp2")  # doctest: +SKIP
>>> a.layout.tp, a.layout.pp, a.layout.dp              # doctest: +SKIP
(2, 2, 2)
"""
