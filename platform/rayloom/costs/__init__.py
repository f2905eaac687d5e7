"""What a launcher costs, measured: the same config, seed and rows under each, beside peers that show what is possible.

table               what was measured, as rows that can be compared
bare                peer: a plain PyTorch loop over tensors in memory
mllib               peer: Spark MLlib's trees or logistic regression on the same features
parameter_server    peer: the same model with its gradients sent to one process instead of all-reduced
report, charts      the rows as Markdown and as one HTML file
"""
