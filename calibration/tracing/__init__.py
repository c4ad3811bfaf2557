"""Any torch module as a layer table, by tracing on fake tensors."""
