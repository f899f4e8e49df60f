"""What a data engineer asks of built data: is it whole, what does a step read, what differs, how good is its tokenizer."""
