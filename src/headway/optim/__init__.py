"""What turns gradients into an update: AdamW over two groups, clipping, the tensors that a checkpoint holds (torch)."""
