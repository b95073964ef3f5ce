"""One file for each way attention is computed: each turns a call into a record, or says why it cannot."""
