"""Reports for people: rich renderables made from the frozen report and nothing else."""
