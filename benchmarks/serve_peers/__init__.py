"""The peers of `benchmarks.serve`: the same bundle behind three other servers, each as its documentation says."""
