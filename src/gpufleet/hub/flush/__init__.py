"""The flush stage: logged batches are screened, normalised and written to the store."""
