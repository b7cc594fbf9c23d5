"""The benchmarks: leasehold beside other locks. Start with ../README.md."""
