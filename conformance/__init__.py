"""Conformance: PyTorch's own operator, module and optimizer databases on the device, judged by the CPU's results.

`python -m conformance` runs them; docs/conformance.md shows what came out. The parts:

  catalogue   what there is to run: an Entry for each operator, module and optimizer, with its family
  samples     inputs: moved to the device with their layout, made non-contiguous or expanded
  compare     when two results are the same: tolerances, operators without a unique result, random ones
  checks      the checks of an operator: forward, gradient, gradgrad, inplace, out, noncontiguous, expanded, errors
  networks    the checks of a module and of an optimizer
  worker      a process that runs entries one after the other and writes a line for each case
  runner      hands entries to workers; survives their crashes and time-outs
  exceptions  what is known to fail and why (exceptions.toml), judged both ways
  report      docs/conformance.md and results/*.json
"""
