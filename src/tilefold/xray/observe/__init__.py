def observe(report, evidence): return ()
