"""The compile cache: programs are found by what they compute, in this process, on disk and in a shared directory.

key: the digest of a program. entry: a program as bytes. directory: a tier on disk. store: the tiers together.
difference, report: what was compiled and why. archive: many entries in one file. guard: warm-up.
"""
