"""The TorchBench, Hugging Face and TIMM suites of PyTorch's benchmarks/dynamo: fixed lists, a runner, a report."""
